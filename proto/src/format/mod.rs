//! Files on the volume that the control thread writes, encode and decode without I/O. The shards' own formats are in
//! `kaas-core`; `core/FORMATS.md` has every byte of both.

pub mod assignment;
pub mod cluster_id;
pub mod sealed_json;
pub mod topic_config;
pub mod topic_id;

#[cfg(test)]
mod robustness;
