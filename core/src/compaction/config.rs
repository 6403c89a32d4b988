//! The settings of the broker that compaction follows.

use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;

/// What one shard may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionConfig {
    /// `log.cleaner.enable`
    pub enabled: bool,
    /// The shard's part of `log.cleaner.dedupe.buffer.size`: memory for the last offsets of keys.
    pub map_bytes: usize,
    /// The shard's part of `log.cleaner.io.max.bytes.per.second`, reads and writes together.
    pub bytes_per_second: f64,
    /// `log.cleaner.backoff.ms`: how long the shard rests when nothing is to be compacted, and a
    /// partition after each pass.
    pub backoff: Duration,
}

impl CompactionConfig {
    /// A part of what the broker may take: one of `shards`.
    #[must_use]
    pub fn share_of(settings: &BrokerConfig, shards: u16) -> Self {
        let shards = shards.max(1);
        Self {
            enabled: settings.compaction_enabled,
            map_bytes: settings.compaction_map_bytes / usize::from(shards),
            bytes_per_second: settings.compaction_bytes_per_second / f64::from(shards),
            backoff: settings.compaction_backoff,
        }
    }
}
