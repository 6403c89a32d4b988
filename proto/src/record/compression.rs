//! Decompression of records, bounded.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::MultiGzDecoder;

use super::batch::Compression;
use super::record::RecordError;
use super::varint::take;

/// The xerial library's frame around Snappy: this, two version numbers, then blocks with four bytes of length each.
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_VERSIONS_BYTES: usize = 8;

/// The largest window that a Zstandard frame may ask us to keep: 2^27, what its own tools allow by default.
const ZSTD_MAX_WINDOW_LOG: u32 = 27;

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
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(|_| invalid)?;
            decoder.window_log_max(ZSTD_MAX_WINDOW_LOG).map_err(|_| invalid)?;
            read_bounded(decoder, max_bytes, invalid)
        }
    }
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
