//! Two volumes seen as one: what lies below `__cluster` is on the second one, if there is a second.

use std::io;
use std::path::Path;

use kaas_proto::roots::below_cluster;
use kaas_proto::types::TimestampMs;

use super::path::check_rename;
use super::{DirectoryEntry, OpenMode, Volume, VolumeSpace};

/// Routes each path by its first name. What hangs on one of them takes no place from the other.
#[derive(Clone, Debug)]
pub struct SplitVolume<V> {
    data: V,
    /// Its root stands for `__cluster`.
    cluster: Option<V>,
}

impl<V: Volume> SplitVolume<V> {
    #[must_use]
    pub fn new(data: V, cluster: Option<V>) -> Self {
        Self { data, cluster }
    }

    /// The volume of topics.
    #[must_use]
    pub fn data(&self) -> &V {
        &self.data
    }

    fn route<'p>(&self, path: &'p Path) -> (&V, &'p Path) {
        match (&self.cluster, below_cluster(path)) {
            (Some(cluster), Some(rest)) => (cluster, rest),
            _ => (&self.data, path),
        }
    }
}

impl<V: Volume> Volume for SplitVolume<V> {
    type File = V::File;

    async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<V::File> {
        let (volume, path) = self.route(path);
        volume.open(path, mode).await
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let (volume, directory) = self.route(directory);
        volume.list(directory).await
    }

    async fn size(&self, path: &Path) -> io::Result<u64> {
        let (volume, path) = self.route(path);
        volume.size(path).await
    }

    async fn modified(&self, path: &Path) -> io::Result<Option<TimestampMs>> {
        let (volume, path) = self.route(path);
        volume.modified(path).await
    }

    async fn read(&self, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let (volume, path) = self.route(path);
        volume.read(path, limit_bytes).await
    }

    async fn write(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.write(path, content).await
    }

    async fn overwrite(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.overwrite(path, content).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // Within one directory, so within one volume; `__cluster` itself is the root of one, which has no name there.
        check_rename(from, to)?;
        let ((volume, from), (_, to)) = (self.route(from), self.route(to));
        volume.rename(from, to).await
    }

    async fn unlink(&self, path: &Path) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.unlink(path).await
    }

    async fn create_directories(&self, path: &Path) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.create_directories(path).await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.remove_directory(path).await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let (volume, path) = self.route(path);
        volume.sync_directory(path).await
    }

    async fn space(&self, path: &Path) -> io::Result<VolumeSpace> {
        let (volume, path) = self.route(path);
        volume.space(path).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::io::ErrorKind;

    use super::super::Env;
    use super::super::conformance::{kind, path};
    use super::super::memory::MemoryEnv;
    use super::*;

    #[test]
    fn what_is_below_cluster_lies_on_the_second_volume() {
        let (env, other) = (MemoryEnv::virtual_time(), MemoryEnv::virtual_time());
        env.run(async {
            let (data, cluster) = (env.volume().clone(), other.volume().clone());
            let volume = SplitVolume::new(data.clone(), Some(cluster.clone()));
            volume.create_directories(path("__cluster/reserve")).await.unwrap();
            volume.create_directories(path("__cluster")).await.unwrap();
            volume.create_directories(path("t/0")).await.unwrap();
            volume.write(path("__cluster/reserve/1.tmp"), b"c".to_vec()).await.unwrap();
            volume.rename(path("__cluster/reserve/1.tmp"), path("__cluster/reserve/1")).await.unwrap();
            volume.write(path("t/0/f"), b"d".to_vec()).await.unwrap();
            volume.sync_directory(path("__cluster")).await.unwrap();
            assert_eq!(cluster.read(path("reserve/1"), 9).await.unwrap(), b"c");
            assert_eq!(data.read(path("t/0/f"), 9).await.unwrap(), b"d");
            assert_eq!(kind(data.list(path("__cluster")).await), ErrorKind::NotFound);
            assert_eq!(volume.list(path("__cluster")).await.unwrap().len(), 1);
            assert_eq!(kind(volume.rename(path("__cluster"), path("t2")).await), ErrorKind::InvalidInput);
            assert_eq!(kind(volume.rename(path("t"), path("__cluster")).await), ErrorKind::InvalidInput);
            cluster.set_capacity(Some(1000));
            data.set_capacity(Some(2000));
            assert_eq!(volume.space(path("__cluster")).await.unwrap().total_bytes, 1000);
            assert_eq!(volume.space(path("")).await.unwrap().total_bytes, 2000);
        });
    }
}
