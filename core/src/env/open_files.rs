//! How the open files that the process may have are shared out, so that clients never take those of the volume.

use thiserror::Error;

/// Standard streams, listeners, the admin endpoint with all its connections, heartbeats and helpers.
const FILES_OF_PROCESS: u64 = 128;
/// Rings, event descriptors and one listener more.
const FILES_PER_SHARD: u64 = 32;
/// The coordinator slots, which are no partitions of a topic: a fence, the segment that is appended to, and one that is read.
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
    /// Partitions of topics: each keeps its fence open while it is led.
    pub partitions: u64,
    /// Segments of all partitions, over all shards.
    pub segments: u64,
}

/// The volume has two fifths of all, and what `max_connections` leaves; what the broker itself needs is taken from the rest, which is for
/// clients: of 20,000 files more than 10,000 are.
///
/// ```text
///   process, shards, slots │ connections … │ fences ¾                    │ segments ⅛ │ in passing ⅛ │
///                                          └─ of the volume ───────────────────────────────────────┘
/// ```
///
/// In passing a file is opened beside a segment: its directory while a name is made durable, an index or a checkpoint that is written;
/// and by takeovers, which read the end of a log.
///
/// # Errors
/// There are not enough for anybody.
pub fn share(limit: u64, shards: u16, has_volume: bool, max_connections: usize) -> Result<Shares, TooFewFiles> {
    let own = FILES_OF_PROCESS + FILES_PER_SHARD * u64::from(shards) + if has_volume { FILES_OF_SLOTS } else { 0 };
    let least_of_volume = |limit: u64| if has_volume { limit / 5 * 2 } else { 0 };
    let left = |limit: u64| (limit - least_of_volume(limit)).checked_sub(own).filter(|&left| left >= MIN_CONNECTIONS);
    let Some(left) = left(limit) else {
        let needed = (own..).find(|&limit| left(limit).is_some()).expect("three fifths of much are enough");
        return Err(TooFewFiles { limit, needed, shards });
    };
    let connections = usize::try_from(left).unwrap_or(usize::MAX).min(max_connections);
    if !has_volume {
        return Ok(Shares { connections, partitions: u64::MAX, segments: u64::MAX });
    }
    let of_volume = limit - own - connections as u64;
    let of_logs = of_volume / 4;
    Ok(Shares { connections, partitions: of_volume - of_logs, segments: of_logs / 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_has_its_files_whatever_clients_do() {
        let shares = |limit, has_volume, max_connections| {
            let Shares { connections, partitions, segments } =
                share(limit, 2, has_volume, max_connections).expect("enough");
            (connections, partitions, segments)
        };
        assert_eq!(shares(1024, true, usize::MAX), (274, 306, 51));
        assert_eq!(shares(1024, false, usize::MAX), (832, u64::MAX, u64::MAX));
        assert_eq!(shares(20_000, true, usize::MAX), (11_658, 6000, 1000));
        // What clients may not have is for the volume.
        assert_eq!(shares(20_000, true, 1000), (1000, 13_994, 2332));
    }

    #[test]
    fn a_limit_that_is_too_low_is_refused_with_the_one_that_would_do() {
        for has_volume in [false, true] {
            let error = share(64, 2, has_volume, usize::MAX).expect_err("64 are too few");
            assert!(error.to_string().starts_with("64 files may be open"), "{error}");
            assert!(share(error.needed, 2, has_volume, usize::MAX).is_ok_and(|shares| shares.connections >= 16));
            assert!(share(error.needed - 1, 2, has_volume, usize::MAX).is_err());
        }
    }
}
