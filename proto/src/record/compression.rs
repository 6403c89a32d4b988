//! Compression of records, and decompression, bounded.

use std::borrow::Cow;
use std::io::{self, Read, Write};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use super::batch::Compression;
use super::record::RecordError;
use super::varint::take;

/// The xerial library's frame around Snappy: this, two version numbers, then blocks with four bytes of length each.
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_VERSIONS_BYTES: usize = 8;
/// Version 1, readable from version 1 on.
const XERIAL_VERSIONS: [u8; XERIAL_VERSIONS_BYTES] = [0, 0, 0, 1, 0, 0, 0, 1];
/// What the library puts into one block.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// The largest window that a Zstandard frame may ask us to keep: 2^27, what its own tools allow by default.
const ZSTD_MAX_WINDOW_LOG: u32 = 27;

/// `bytes` compressed as Kafka's own clients do it and can read it.
///
/// # Errors
/// A compressor's own; none is known to fail on memory.
pub(crate) fn compress(compression: Compression, bytes: &[u8]) -> io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(bytes.to_vec()),
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Compression::Snappy => {
            let mut framed = [XERIAL_MAGIC, &XERIAL_VERSIONS].concat();
            let mut encoder = snap::raw::Encoder::new();
            for block in bytes.chunks(XERIAL_BLOCK_BYTES) {
                let block = encoder.compress_vec(block).map_err(io::Error::other)?;
                let length = i32::try_from(block.len()).expect("a block is some 32 KiB");
                framed.extend_from_slice(&length.to_be_bytes());
                framed.extend_from_slice(&block);
            }
            Ok(framed)
        }
        Compression::Lz4 => {
            // The Java client reads frames of independent blocks only.
            let frame = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
            let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
            encoder.write_all(bytes)?;
            encoder.finish().map_err(io::Error::other)
        }
        Compression::Zstd => zstd::stream::encode_all(bytes, zstd::DEFAULT_COMPRESSION_LEVEL),
    }
}

/// `bytes` without their compression, if they are no longer than `max_bytes` then.
pub(crate) fn decompress(
    compression: Compression,
    bytes: &[u8],
    max_bytes: usize,
) -> Result<Cow<'_, [u8]>, RecordError> {
    let invalid = RecordError::Decompress(compression);
    match compression {
        Compression::None => Ok(Cow::Borrowed(bytes)),
        Compression::Gzip => read_bounded(MultiGzDecoder::new(bytes), max_bytes, invalid),
        Compression::Snappy => snappy(bytes, max_bytes).map(Cow::Owned),
        Compression::Lz4 => read_bounded(lz4_flex::frame::FrameDecoder::new(bytes), max_bytes, invalid),
        Compression::Zstd => read_bounded(zstd_decoder(bytes).map_err(|_| invalid)?, max_bytes, invalid),
    }
}

/// Records on their way out of their compression.
pub(crate) enum Decompressing<'a> {
    /// They have none.
    Plain(&'a [u8]),
    /// A bound is up to the reader.
    Stream(Box<dyn Read + 'a>),
}

/// `bytes` without their compression, as they are asked for.
pub(crate) fn decompressing(
    compression: Compression,
    bytes: &[u8],
    max_bytes: u64,
) -> Result<Decompressing<'_>, RecordError> {
    let invalid = RecordError::Decompress(compression);
    let stream: Box<dyn Read + '_> = match compression {
        Compression::None => return Ok(Decompressing::Plain(bytes)),
        Compression::Gzip => Box::new(MultiGzDecoder::new(bytes)),
        // Its blocks have no inner end: one is decompressed whole, to 22 times its size at most.
        Compression::Snappy => {
            let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
            Box::new(io::Cursor::new(snappy(bytes, max_bytes)?))
        }
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(bytes)),
        Compression::Zstd => Box::new(zstd_decoder(bytes).map_err(|_| invalid)?),
    };
    Ok(Decompressing::Stream(stream))
}

fn zstd_decoder(bytes: &[u8]) -> io::Result<zstd::stream::read::Decoder<'static, &[u8]>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
    decoder.window_log_max(ZSTD_MAX_WINDOW_LOG)?;
    Ok(decoder)
}

fn read_bounded(reader: impl Read, max_bytes: usize, invalid: RecordError) -> Result<Cow<'static, [u8]>, RecordError> {
    let mut decompressed = Vec::new();
    let one_more = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(one_more).read_to_end(&mut decompressed).map_err(|_| invalid)?;
    if decompressed.len() > max_bytes { Err(RecordError::TooLarge(max_bytes)) } else { Ok(decompressed.into()) }
}

fn snappy(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, RecordError> {
    let mut decompressed = Vec::new();
    let Some(mut blocks) = bytes.strip_prefix(XERIAL_MAGIC) else {
        snappy_block(bytes, max_bytes, &mut decompressed)?;
        return Ok(decompressed);
    };
    take(&mut blocks, XERIAL_VERSIONS_BYTES)?;
    while !blocks.is_empty() {
        let length = take(&mut blocks, 4)?.first_chunk().map(|length| i32::from_be_bytes(*length)).unwrap_or_default();
        let length = usize::try_from(length).map_err(|_| RecordError::NegativeLength(length))?;
        snappy_block(take(&mut blocks, length)?, max_bytes, &mut decompressed)?;
    }
    Ok(decompressed)
}

fn snappy_block(block: &[u8], max_bytes: usize, decompressed: &mut Vec<u8>) -> Result<(), RecordError> {
    let invalid = RecordError::Decompress(Compression::Snappy);
    let length = snap::raw::decompress_len(block).map_err(|_| invalid)?;
    let start = decompressed.len();
    if length > max_bytes - start {
        return Err(RecordError::TooLarge(max_bytes));
    }
    // Three bytes of Snappy can stand for 64 at most: do not believe a length that the block can not fill.
    if length / 64 > block.len() {
        return Err(invalid);
    }
    decompressed.resize(start + length, 0);
    let written = snap::raw::Decoder::new().decompress(block, &mut decompressed[start..]).map_err(|_| invalid)?;
    if written == length { Ok(()) } else { Err(invalid) }
}
