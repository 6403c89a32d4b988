//! How the open files that the process may have are shared out, so that clients never take those of the volume.

use thiserror::Error;

/// Standard streams, listeners, the admin endpoint with all its connections, heartbeats and helpers.
const FILES_OF_PROCESS: u64 = 128;
/// Rings, event descriptors and one listener more.
const FILES_PER_SHARD: u64 = 32;
/// Of the coordinator slots, which are no partitions of a topic: a fence, an active segment and one that is read.
const FILES_OF_SLOTS: u64 = 3 * 50;
/// A broker that can't serve so many clients is of no use.
const MIN_CONNECTIONS: u64 = 16;

/// The limit of open files is too low to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{limit} files may be open, a broker with {shards} shards needs {needed}: raise the limit (ulimit -n, LimitNOFILE), or \
     start fewer shards with --shards"
)]
pub struct TooFewFiles {
    pub limit: u64,
    pub needed: u64,
    pub shards: u16,
}

/// How many of them Kafka connections may take. With a volume its partitions have half of all.
///
/// # Errors
/// There are not enough for anybody.
pub fn for_connections(limit: u64, shards: u16, has_volume: bool) -> Result<usize, TooFewFiles> {
    let own = FILES_OF_PROCESS + FILES_PER_SHARD * u64::from(shards) + if has_volume { FILES_OF_SLOTS } else { 0 };
    let (share, shares) = if has_volume { (limit / 2, 2) } else { (limit, 1) };
    match share.checked_sub(own).filter(|&left| left >= MIN_CONNECTIONS) {
        Some(left) => Ok(usize::try_from(left).unwrap_or(usize::MAX)),
        None => Err(TooFewFiles { limit, needed: shares * (own + MIN_CONNECTIONS), shards }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_has_its_files_whatever_clients_do() {
        assert_eq!(for_connections(1024, 2, true), Ok(170));
        assert_eq!(for_connections(1024, 2, false), Ok(832));
        assert_eq!(for_connections(1 << 20, 8, true), Ok((1 << 19) - 534));
    }

    #[test]
    fn a_limit_that_is_too_low_is_refused_with_the_one_that_would_do() {
        for has_volume in [false, true] {
            let error = for_connections(64, 2, has_volume).expect_err("64 are too few");
            assert!(error.to_string().starts_with("64 files may be open"), "{error}");
            assert_eq!(for_connections(error.needed, 2, has_volume), Ok(16));
            assert!(for_connections(error.needed - 1, 2, has_volume).is_err());
        }
    }
}
