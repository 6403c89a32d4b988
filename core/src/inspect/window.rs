//! A file of any size, seen through a window that moves forward.

use std::io;
use std::os::unix::fs::FileExt;

use super::source::Source;

const READ_BYTES: usize = 1 << 20;

/// The bytes from `position` on, as many as were asked for.
pub(super) struct Window<'source> {
    source: &'source Source,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are behind us.
    consumed: usize,
    position: u64,
    at_end: bool,
}

impl<'source> Window<'source> {
    pub(super) fn new(source: &'source Source) -> Self {
        Self::at(source, 0)
    }

    pub(super) fn at(source: &'source Source, position: u64) -> Self {
        Self { source, buffer: Vec::new(), consumed: 0, position, at_end: false }
    }

    /// Where the window begins in the file.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Nothing follows behind the window.
    pub(super) fn at_end(&self) -> bool {
        self.at_end
    }

    /// Makes the window at least so wide, unless the file ends first.
    pub(super) fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while self.bytes().len() < wanted && !self.at_end {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            let old = self.buffer.len();
            // Grows with what is really there, whatever a damaged length claims.
            self.buffer.resize(old + READ_BYTES, 0);
            let read = self.source.handle().read_at(&mut self.buffer[old..], self.position + old as u64)?;
            self.buffer.truncate(old + read);
            self.at_end = read == 0;
        }
        Ok(())
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.consumed += bytes;
        self.position += bytes as u64;
    }

    /// Forgets what was read, to see what is there now.
    pub(super) fn look_again(&mut self) {
        self.buffer.clear();
        self.consumed = 0;
        self.at_end = false;
    }

    /// How many bytes are left if all of them are zero; `None` if one is not. Moves to there.
    pub(super) fn only_zeros(&mut self) -> io::Result<Option<u64>> {
        let from = self.position;
        loop {
            let zeros = self.bytes().iter().take_while(|&&byte| byte == 0).count();
            let all = zeros == self.bytes().len();
            self.advance(zeros);
            if !all {
                return Ok(None);
            }
            if self.at_end {
                return Ok(Some(self.position - from));
            }
            self.fill(1)?;
        }
    }
}
