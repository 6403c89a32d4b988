//! The directories that the paths of [`crate::layout`] lead to: the data directory, and what stands for its `__cluster`, which may lie
//! on a volume of its own.

use std::path::{Path, PathBuf};

use crate::layout::CLUSTER_DIRECTORY;

/// Where a broker keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    data: PathBuf,
    /// `None`: it is the directory of that name in the data directory.
    cluster: Option<PathBuf>,
}

impl Roots {
    /// `cluster` stands for `__cluster`, if that is not in the data directory.
    #[must_use]
    pub fn new(data: PathBuf, cluster: Option<PathBuf>) -> Self {
        Self { data, cluster }
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// What stands for `__cluster`.
    #[must_use]
    pub fn cluster(&self) -> PathBuf {
        self.cluster.clone().unwrap_or_else(|| self.data.join(CLUSTER_DIRECTORY))
    }

    /// What stands for `__cluster`, if it is not in the data directory.
    #[must_use]
    pub fn own_cluster(&self) -> Option<&Path> {
        self.cluster.as_deref()
    }

    /// Where a path of the layout is.
    #[must_use]
    pub fn locate(&self, path: &Path) -> PathBuf {
        match (&self.cluster, below_cluster(path)) {
            (Some(cluster), Some(rest)) => cluster.join(rest),
            _ => self.data.join(path),
        }
    }
}

/// A data directory with everything in it.
impl<P: AsRef<Path> + ?Sized> From<&P> for Roots {
    fn from(data: &P) -> Self {
        Self::new(data.as_ref().to_owned(), None)
    }
}

/// What is behind `__cluster` in a path of the layout, if it begins with that.
#[must_use]
pub fn below_cluster(path: &Path) -> Option<&Path> {
    path.strip_prefix(CLUSTER_DIRECTORY).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::slot_directory;
    use crate::types::SlotId;

    #[test]
    fn what_begins_with_the_name_of_the_cluster_directory_lies_in_what_stands_for_it() {
        let slot = slot_directory(SlotId(7));
        let together = Roots::from("/d");
        assert_eq!(together.locate(&slot), Path::new("/d/__cluster/coordinators/07"));
        assert_eq!((together.cluster(), together.own_cluster()), (PathBuf::from("/d/__cluster"), None));
        let apart = Roots::new("/d".into(), Some("/c".into()));
        assert_eq!(apart.locate(&slot), Path::new("/c/coordinators/07"));
        assert_eq!(apart.locate(Path::new("__cluster")), Path::new("/c"));
        assert_eq!(apart.locate(Path::new("__clusters/x")), Path::new("/d/__clusters/x"));
        assert_eq!(apart.locate(Path::new("t/__cluster")), Path::new("/d/t/__cluster"));
        assert_eq!((apart.data(), apart.cluster()), (Path::new("/d"), PathBuf::from("/c")));
    }
}
