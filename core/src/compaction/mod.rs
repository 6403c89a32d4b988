//! Log compaction: what stays of a partition's older segments when only the last record of each key is wanted.
//!
//! Pure decisions, one file each: [`selection`] (which segments, and when), [`offset_map`] (the last offset of each key),
//! [`transactions`] (whose records never counted, which markers are spent), [`rules`] (what stays of a batch),
//! [`throttle`]. [`pass`] carries them out: it reads [`source`]s and writes [`output`]s. What is written counts once the
//! partition has recorded it in its manifest and asked its fence.
//!
//! A compacted segment says by its generation that it is clean, so nothing else needs to be remembered: the first dirty
//! offset is where the first segment begins that was appended.

pub mod config;
pub mod error;
pub mod offset_map;
pub mod output;
pub mod pass;
pub mod rules;
pub mod selection;
pub mod source;
pub mod throttle;
pub mod transactions;
