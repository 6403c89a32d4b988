//! Paths inside a volume: relative, and never upwards.

use std::io;
use std::path::{Component, Path};

/// The names of a relative path, from the root down. Empty for the root itself.
///
/// # Errors
/// `InvalidInput` for absolute paths, `..`, and names that are not UTF-8: none of ours are, and names that come from
/// clients must not lead out of the volume.
pub(super) fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or_else(|| refused(path))?),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(refused(path)),
        }
    }
    Ok(names)
}

/// # Errors
/// `InvalidInput` unless both paths name entries of the same directory: only then is a rename atomic everywhere.
pub(super) fn check_rename(from: &Path, to: &Path) -> io::Result<()> {
    if names(from)?.is_empty() || names(to)?.is_empty() || from.parent() != to.parent() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("rename of {} to {} leaves the directory", from.display(), to.display()),
        ));
    }
    Ok(())
}

fn refused(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no path inside the volume", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(names(Path::new("a/b")).unwrap(), ["a", "b"]);
        assert!(names(Path::new("")).unwrap().is_empty());
        assert!(names(Path::new(".")).unwrap().is_empty());
        for bad in ["/a", "a/../b", "..", "../x"] {
            assert_eq!(names(Path::new(bad)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad}");
        }
    }

    #[test]
    fn renames_stay_in_their_directory() {
        assert!(check_rename(Path::new("a/b"), Path::new("a/c")).is_ok());
        assert!(check_rename(Path::new("b"), Path::new("c")).is_ok());
        assert!(check_rename(Path::new("a/b"), Path::new("c")).is_err());
        assert!(check_rename(Path::new("a/b"), Path::new("a/../c")).is_err());
    }
}
