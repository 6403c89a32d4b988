//! The file operations of a ring. Each goes on when its future is dropped; what it would have returned is then dropped.

#![expect(unsafe_code, reason = "every submission promises that what it points to stays alive")]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::rc::Rc;

use bytes::Bytes;
use io_uring::opcode;
use io_uring::types::Fd;

use super::AlignedBuffer;
use super::ring::Ring;
use super::ring_slots::Held;

const FILE_MODE: libc::mode_t = 0o644;
const DIRECTORY_MODE: libc::mode_t = 0o755;

/// What Linux reads or writes at most in one call: 2 GiB less one page.
const MAXIMUM_BYTES: usize = 0x7fff_f000;

/// An open file. Dropped, it closes in the background: a close may hang as long as a server does.
pub(super) struct Descriptor {
    ring: Ring,
    number: RawFd,
}

impl Descriptor {
    pub(super) fn number(&self) -> RawFd {
        self.number
    }

    fn fd(&self) -> Fd {
        Fd(self.number)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.number >= 0 {
            self.ring.close_in_background(self.number);
        }
    }
}

/// Whose size is wanted.
pub(super) enum SizeOf<'file> {
    File(&'file Rc<Descriptor>),
    /// Asked from the server, not from a cache.
    Path(CString),
}

/// The length of one call.
fn call_length(length: usize) -> u32 {
    u32::try_from(length.min(MAXIMUM_BYTES)).expect("31 bits")
}

/// The result of a system call.
fn check(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Ring {
    /// Opens a file by its absolute path.
    pub(super) async fn open(&self, path: CString, flags: i32) -> io::Result<Rc<Descriptor>> {
        let entry = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr())
            .flags(flags | libc::O_CLOEXEC)
            .mode(FILE_MODE)
            .build();
        // SAFETY: the name's bytes do not move with their owner.
        let (result, _) = unsafe { self.perform(entry, None, Held::Open(path)) }.await;
        let number = check(result)?.cast_signed();
        Ok(Rc::new(Descriptor { ring: self.clone(), number }))
    }

    /// Closes a file and says what came of it, unless an operation that was given up still uses it.
    pub(super) async fn close(&self, file: Rc<Descriptor>) -> io::Result<()> {
        let Ok(mut file) = Rc::try_unwrap(file) else { return Ok(()) };
        let entry = opcode::Close::new(Fd(mem::replace(&mut file.number, -1))).build();
        // SAFETY: no pointers, and the descriptor has no owner any more.
        let (result, _) = unsafe { self.perform(entry, None, Held::Nothing) }.await;
        check(result).map(drop)
    }

    /// Fills the buffer behind its content, up to its capacity. One call: the file may have more.
    pub(super) async fn read(
        &self,
        file: &Rc<Descriptor>,
        offset: u64,
        mut buffer: AlignedBuffer,
    ) -> io::Result<AlignedBuffer> {
        let (spare, length) = buffer.spare();
        let entry = opcode::Read::new(file.fd(), spare, call_length(length)).offset(offset).build();
        // SAFETY: `spare` has room for `length` bytes, which do not move with the buffer.
        let (result, held) = unsafe { self.perform(entry, Some(Rc::clone(file)), Held::Buffer(buffer)) }.await;
        let Held::Buffer(mut buffer) = held else { unreachable!("a slot keeps what it was given") };
        let got = check(result)? as usize;
        // SAFETY: the kernel wrote so many bytes, no more than it was asked for.
        unsafe { buffer.advance(got) };
        Ok(buffer)
    }

    /// Writes the beginning of `content`, and returns how much of it.
    pub(super) async fn write(&self, file: &Rc<Descriptor>, offset: u64, content: Bytes) -> io::Result<usize> {
        let length = call_length(content.len());
        let entry = opcode::Write::new(file.fd(), content.as_ptr(), length).offset(offset).build();
        // SAFETY: the content does not move with its owner, and nobody changes it: `Bytes` are shared for reading.
        let (result, _) = unsafe { self.perform(entry, Some(Rc::clone(file)), Held::Content(content)) }.await;
        check(result).map(|written| written as usize)
    }

    pub(super) async fn sync(&self, file: &Rc<Descriptor>) -> io::Result<()> {
        // SAFETY: no pointers.
        let (result, _) =
            unsafe { self.perform(opcode::Fsync::new(file.fd()).build(), Some(Rc::clone(file)), Held::Nothing) }.await;
        check(result).map(drop)
    }

    /// Only if [`Ring::truncates`].
    pub(super) async fn truncate(&self, file: &Rc<Descriptor>, length: u64) -> io::Result<()> {
        let entry = opcode::Ftruncate::new(file.fd(), length).build();
        // SAFETY: no pointers.
        let (result, _) = unsafe { self.perform(entry, Some(Rc::clone(file)), Held::Nothing) }.await;
        check(result).map(drop)
    }

    /// The size of an open file, or of the one with this absolute path, asked from the server.
    pub(super) async fn size(&self, of: SizeOf<'_>) -> io::Result<u64> {
        let (file, fd, path, flags) = match of {
            SizeOf::File(file) => (Some(Rc::clone(file)), file.fd(), CString::default(), libc::AT_EMPTY_PATH),
            SizeOf::Path(path) => (None, Fd(libc::AT_FDCWD), path, libc::AT_STATX_FORCE_SYNC),
        };
        let mut answer = AlignedBuffer::zeroed(size_of::<libc::statx>());
        let entry = opcode::Statx::new(fd, path.as_ptr(), answer.as_mut_ptr().cast())
            .flags(flags)
            .mask(libc::STATX_SIZE)
            .build();
        // SAFETY: the answer fits, and neither its bytes nor the name's move with their owners.
        let (result, held) = unsafe { self.perform(entry, file, Held::Stat(path, answer)) }.await;
        check(result)?;
        let Held::Stat(_, answer) = held else { unreachable!("a slot keeps what it was given") };
        let size = answer[mem::offset_of!(libc::statx, stx_size)..].first_chunk();
        Ok(u64::from_ne_bytes(*size.expect("the field lies inside the structure")))
    }

    pub(super) async fn rename(&self, from: CString, to: CString) -> io::Result<()> {
        let here = Fd(libc::AT_FDCWD);
        let entry = opcode::RenameAt::new(here, from.as_ptr(), here, to.as_ptr()).build();
        // SAFETY: the names' bytes do not move with their owners.
        let (result, _) = unsafe { self.perform(entry, None, Held::Names(from, Some(to))) }.await;
        check(result).map(drop)
    }

    /// Removes a file, or with `AT_REMOVEDIR` a directory.
    pub(super) async fn unlink(&self, path: CString, flags: i32) -> io::Result<()> {
        let entry = opcode::UnlinkAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(flags).build();
        // SAFETY: the name's bytes do not move with their owner.
        let (result, _) = unsafe { self.perform(entry, None, Held::Names(path, None)) }.await;
        check(result).map(drop)
    }

    pub(super) async fn create_directory(&self, path: CString) -> io::Result<()> {
        let entry = opcode::MkDirAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).mode(DIRECTORY_MODE).build();
        // SAFETY: the name's bytes do not move with their owner.
        let (result, _) = unsafe { self.perform(entry, None, Held::Names(path, None)) }.await;
        check(result).map(drop)
    }
}
