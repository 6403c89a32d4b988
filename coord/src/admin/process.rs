//! What the kernel counts for this process, under the names that Prometheus's own clients use.

use std::fs;

use kaas_proto::metrics::MetricName;

use super::prometheus::Exposition;

const MEMORY: MetricName = MetricName::gauge("process_resident_memory_bytes", "Resident memory.");
const OPEN_FILES: MetricName = MetricName::gauge("process_open_fds", "Open file descriptors.");

/// Reads `/proc`, which is no volume and does not block. Where there is none the samples are missing.
pub(super) fn add(exposition: &mut Exposition) {
    if let Some(kibibytes) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_kibibytes) {
        exposition.number(MEMORY, Vec::new(), f64::from(kibibytes) * 1024.0);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        let open = u32::try_from(entries.count()).unwrap_or(u32::MAX);
        exposition.number(OPEN_FILES, Vec::new(), f64::from(open));
    }
}

fn resident_kibibytes(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_text() {
        assert_eq!(resident_kibibytes("Name:\tkaas\nVmRSS:\t   12345 kB\nThreads:\t3\n"), Some(12_345));
        assert_eq!(resident_kibibytes("Name:\tkaas\n"), None);
    }
}
