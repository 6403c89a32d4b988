//! Memory that direct I/O accepts.

#![expect(unsafe_code, reason = "aligned memory is allocated by hand, and the kernel writes into it")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::BLOCK_BYTES;

/// Bytes of all aligned buffers of the process, frozen ones included.
static OUTSTANDING_BYTES: AtomicU64 = AtomicU64::new(0);

/// A growable prefix of a block-aligned allocation whose capacity is a multiple of [`BLOCK_BYTES`].
///
/// Filled by one owner, then frozen into [`Bytes`] without a copy. It never moves and never grows beyond its capacity:
/// the kernel may be reading from it.
pub struct AlignedBuffer {
    /// The first `length` bytes are initialised.
    pointer: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its allocation alone, and plain bytes may be touched and freed by any thread.
unsafe impl Send for AlignedBuffer {}
// SAFETY: through a shared reference bytes are only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Empty, with room for at least `bytes`, rounded up to whole blocks (one at least).
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self::allocate(bytes, alloc, 0)
    }

    /// `length` zeros, with room up to the next block boundary.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Self::allocate(length, alloc_zeroed, length)
    }

    fn allocate(bytes: usize, allocate: unsafe fn(Layout) -> *mut u8, length: usize) -> Self {
        let capacity = bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe { allocate(layout) };
        let pointer = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout));
        OUTSTANDING_BYTES.fetch_add(capacity as u64, Ordering::Relaxed);
        Self { pointer, length, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BLOCK_BYTES).expect("a capacity that fits memory makes a valid layout")
    }

    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes still fit.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.capacity - self.length
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// When they do not fit: callers size the buffer first.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.remaining(), "{} bytes into {}", bytes.len(), self.remaining());
        // SAFETY: the destination lies inside the allocation (checked above) and `bytes` can't overlap what we own alone.
        unsafe { self.pointer.as_ptr().add(self.length).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.length += bytes.len();
    }

    /// Appends zeros until the content has `length` bytes; no effect when it has more.
    ///
    /// # Panics
    /// When they do not fit: callers size the buffer first.
    pub fn pad(&mut self, length: usize) {
        let zeros = length.saturating_sub(self.length);
        assert!(zeros <= self.remaining(), "{zeros} bytes into {}", self.remaining());
        // SAFETY: they lie inside the allocation (checked above).
        unsafe { self.pointer.as_ptr().add(self.length).write_bytes(0, zeros) };
        self.length += zeros;
    }

    /// Keeps the first `length` bytes; no effect when there are fewer.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Where the kernel may write behind the content, and how much.
    pub(super) fn spare(&mut self) -> (*mut u8, usize) {
        // SAFETY: the length is at most the capacity.
        (unsafe { self.pointer.as_ptr().add(self.length) }, self.remaining())
    }

    /// Says that so many bytes were written to [`Self::spare`].
    ///
    /// # Safety
    /// They were.
    pub(super) unsafe fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining(), "{bytes} bytes into {}", self.remaining());
        self.length += bytes;
    }

    /// The content, shared and without a copy. The allocation is freed with the last clone.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Bytes allocated by all aligned buffers of this process, frozen ones included: a gauge.
    #[must_use]
    pub fn outstanding_bytes() -> u64 {
        OUTSTANDING_BYTES.load(Ordering::Relaxed)
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout, and nobody else frees it.
        unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.capacity)) };
        OUTSTANDING_BYTES.fetch_sub(self.capacity as u64, Ordering::Relaxed);
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `length` bytes are initialised.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("length", &self.length).field("capacity", &self.capacity).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_whole_blocks_and_the_start_is_aligned() {
        for (wanted, capacity) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)] {
            let buffer = AlignedBuffer::with_capacity(wanted);
            assert_eq!(buffer.capacity(), capacity);
            assert_eq!(buffer.as_ptr().align_offset(BLOCK_BYTES), 0);
            assert!(buffer.is_empty());
        }
        assert_eq!(AlignedBuffer::zeroed(5)[..], [0; 5]);
    }

    #[test]
    fn content_survives_freezing_without_a_copy() {
        let mut buffer = AlignedBuffer::with_capacity(10);
        buffer.extend_from_slice(b"abc");
        buffer[1] = b'x';
        buffer.pad(BLOCK_BYTES);
        assert_eq!(buffer.len(), BLOCK_BYTES);
        assert_eq!(buffer.remaining(), 0);
        let start = buffer.as_ptr();
        let frozen = buffer.freeze();
        assert_eq!(frozen.as_ptr(), start);
        assert_eq!(frozen[..4], *b"axc\0");
        assert!(frozen[4..].iter().all(|&byte| byte == 0));
        let tail = frozen.slice(4096..);
        assert!(tail.is_empty());
    }

    #[test]
    fn outstanding_bytes_count_frozen_buffers() {
        // Other tests allocate too: only what this one holds is certain.
        let held = AlignedBuffer::zeroed(1 << 20).freeze();
        assert!(AlignedBuffer::outstanding_bytes() >= 1 << 20);
        drop(held);
    }

    #[test]
    #[should_panic(expected = "4097 bytes into 4096")]
    fn overfilling_panics() {
        AlignedBuffer::with_capacity(1).extend_from_slice(&[0; 4097]);
    }
}
