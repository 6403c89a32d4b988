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

/// Who may have how many files open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    pub connections: usize,
    /// Of partitions of topics.
    pub partitions: u64,
}

/// Partitions on a volume have two fifths of all; what the broker itself needs is taken from the rest, which is for clients: of
/// 20,000 files more than 10,000 are.
///
/// # Errors
/// There are not enough for anybody.
pub fn share(limit: u64, shards: u16, has_volume: bool) -> Result<Shares, TooFewFiles> {
    let own = FILES_OF_PROCESS + FILES_PER_SHARD * u64::from(shards) + if has_volume { FILES_OF_SLOTS } else { 0 };
    let partitions = |limit: u64| if has_volume { limit / 5 * 2 } else { 0 };
    match (limit - partitions(limit)).checked_sub(own).filter(|&left| left >= MIN_CONNECTIONS) {
        Some(left) => {
            let connections = usize::try_from(left).unwrap_or(usize::MAX);
            Ok(Shares { connections, partitions: if has_volume { partitions(limit) } else { u64::MAX } })
        }
        None => {
            let least = own + MIN_CONNECTIONS;
            let needed =
                (least..).find(|&limit| limit - partitions(limit) >= least).expect("three fifths of much are enough");
            Err(TooFewFiles { limit, needed, shards })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_has_its_files_whatever_clients_do() {
        assert_eq!(share(1024, 2, true), Ok(Shares { connections: 274, partitions: 408 }));
        assert_eq!(share(1024, 2, false), Ok(Shares { connections: 832, partitions: u64::MAX }));
        assert_eq!(share(20_000, 2, true), Ok(Shares { connections: 11_658, partitions: 8_000 }));
    }

    #[test]
    fn a_limit_that_is_too_low_is_refused_with_the_one_that_would_do() {
        for has_volume in [false, true] {
            let error = share(64, 2, has_volume).expect_err("64 are too few");
            assert!(error.to_string().starts_with("64 files may be open"), "{error}");
            assert!(share(error.needed, 2, has_volume).is_ok_and(|shares| shares.connections >= 16));
            assert!(share(error.needed - 1, 2, has_volume).is_err());
        }
    }
}
