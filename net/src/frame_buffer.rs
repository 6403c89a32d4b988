//! Cuts what a client sends into frames. Pure; holds no memory between frames.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::foreign::{self, Foreign};
use crate::limits::{FIRST_ALLOCATION_BYTES, SCRATCH_BYTES};

/// The bytes in front of a frame that say how long it is.
const LENGTH_BYTES: usize = 4;

/// Why a stream of bytes is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameRefusal {
    #[error("it announces a request of {0} bytes")]
    Negative(i32),
    #[error("it announces a request of {length} bytes, socket.request.max.bytes is {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("{0}")]
    Foreign(Foreign),
}

/// What was received of a connection and not yet handed on.
#[derive(Debug)]
pub(crate) struct FrameBuffer {
    /// What was received, and behind it room that [`FrameBuffer::room`] gave out and that was not filled.
    bytes: BytesMut,
    filled: usize,
    limit: usize,
    /// Whether a frame was seen: from then on the client surely speaks Kafka.
    kafka: bool,
}

impl FrameBuffer {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: BytesMut::new(), filled: 0, limit, kafka: false }
    }

    /// Whether a frame has begun and not ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Adds what was received.
    pub(crate) fn push(&mut self, received: &[u8]) {
        self.bytes.truncate(self.filled);
        self.bytes.extend_from_slice(received);
        self.filled += received.len();
    }

    /// The length of the frame that has begun, checked as soon as its four bytes are there.
    pub(crate) fn announced(&self) -> Result<Option<usize>, FrameRefusal> {
        let Some(&prefix) = self.bytes[..self.filled].first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = i32::from_be_bytes(prefix);
        let accepted = usize::try_from(length).ok().filter(|length| *length <= self.limit);
        if let Some(length) = accepted {
            return Ok(Some(length));
        }
        if let Some(foreign) = foreign::recognise(prefix).filter(|_| !self.kafka) {
            return Err(FrameRefusal::Foreign(foreign));
        }
        Err(usize::try_from(length)
            .map_or(FrameRefusal::Negative(length), |length| FrameRefusal::TooLong { length, limit: self.limit }))
    }

    /// Bytes that the frame which has begun lacks; `None` while its length is not known.
    pub(crate) fn missing(&self) -> Option<usize> {
        let announced = self.announced().ok().flatten()?;
        Some((LENGTH_BYTES + announced).saturating_sub(self.filled))
    }

    /// Room for the next part of a frame that is too large for a shard's scratch buffer. The buffer grows as bytes
    /// arrive: an announced length is believed up to [`FIRST_ALLOCATION_BYTES`] only. Say how much of it was filled with
    /// [`FrameBuffer::received`]: the rest is given out again.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.filled + bytes;
        if self.bytes.capacity() < end {
            let missing = self.missing().unwrap_or(bytes);
            let wanted = self.filled.max(FIRST_ALLOCATION_BYTES).min(missing).max(bytes);
            self.bytes.truncate(self.filled);
            self.bytes.reserve(wanted);
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// So much of the room was filled.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The next frame, without its length, if it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, FrameRefusal> {
        let Some(announced) = self.announced()? else { return Ok(None) };
        let end = LENGTH_BYTES + announced;
        if self.filled < end {
            return Ok(None);
        }
        self.kafka = true;
        let frame = if end <= SCRATCH_BYTES {
            // A slice would keep alive whatever else came with it.
            let frame = Bytes::copy_from_slice(&self.bytes[LENGTH_BYTES..end]);
            self.bytes.advance(end);
            frame
        } else {
            self.bytes.advance(LENGTH_BYTES);
            self.bytes.split_to(announced).freeze()
        };
        self.filled -= end;
        if self.filled == 0 {
            self.bytes = BytesMut::new();
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::*;

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
    }

    #[test]
    fn a_length_is_judged_when_it_is_there() {
        let judge = |bytes: &[u8]| {
            let mut buffer = FrameBuffer::new(100);
            buffer.push(bytes);
            buffer.next()
        };
        assert_eq!(judge(&[0, 0, 0]), Ok(None));
        assert_eq!(judge(&[0, 0, 0, 0]), Ok(Some(Bytes::new())));
        assert_eq!(judge(&[0, 0, 0, 101]), Err(FrameRefusal::TooLong { length: 101, limit: 100 }));
        assert_eq!(judge(&[0xff; 4]), Err(FrameRefusal::Negative(-1)));
        let most = usize::try_from(i32::MAX).unwrap();
        assert_eq!(judge(&[0x7f, 0xff, 0xff, 0xff]), Err(FrameRefusal::TooLong { length: most, limit: 100 }));
        assert_eq!(judge(b"GET /"), Err(FrameRefusal::Foreign(Foreign::Http)));
    }

    #[test]
    fn nothing_is_held_between_frames_and_little_for_an_announced_length() {
        let mut buffer = FrameBuffer::new(1 << 30);
        buffer.push(&framed(b"abc"));
        buffer.next().unwrap().unwrap();
        assert_eq!(buffer.bytes.capacity(), 0);
        buffer.push(&(1_u32 << 30).to_be_bytes());
        buffer.room(1024);
        buffer.received(0);
        assert!(buffer.bytes.capacity() <= 2 * FIRST_ALLOCATION_BYTES, "{}", buffer.bytes.capacity());
    }

    #[test]
    fn a_large_frame_is_not_copied_when_it_is_complete() {
        let frame: Vec<u8> = (0..3 * SCRATCH_BYTES).map(|n| n.to_le_bytes()[0]).collect();
        let mut rest = &framed(&frame)[..];
        let mut buffer = FrameBuffer::new(1 << 30);
        buffer.push(&rest[..10]);
        rest = &rest[10..];
        while !rest.is_empty() {
            let room = buffer.room(buffer.missing().unwrap().min(50_000));
            let taken = room.len().min(rest.len()).min(33_333);
            room[..taken].copy_from_slice(&rest[..taken]);
            buffer.received(taken);
            rest = &rest[taken..];
        }
        let place = buffer.bytes[LENGTH_BYTES..].as_ptr();
        let cut = buffer.next().unwrap().unwrap();
        assert_eq!(cut, frame);
        assert_eq!(cut.as_ptr(), place);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            cuts in prop::collection::vec(1_usize..50, 1..200),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
            let mut buffer = FrameBuffer::new(1000);
            let (mut out, mut rest, mut cuts) = (Vec::new(), &stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                buffer.push(now);
                rest = later;
                while let Some(frame) = buffer.next().unwrap() {
                    out.push(frame.to_vec());
                }
            }
            prop_assert_eq!(out, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut buffer = FrameBuffer::new(1000);
            buffer.push(&bytes);
            while let Ok(Some(frame)) = buffer.next() {
                prop_assert!(frame.len() <= 1000);
            }
        }
    }
}
