//! The cluster id: minted once per cluster, by whoever comes first; and which cluster a data directory belongs to.
//!
//! Clients are told the id, and nothing depends on what it is. So a damaged one stops nobody: it is left as it is, and clients see
//! [`ClusterId::unreadable`] until somebody restores it.
//!
//! The data directory has a copy, its record: topics must not meet the committed offsets, epochs and producer ids of another cluster, or
//! none, because somebody gave the wrong cluster directory. Of several brokers that start at once, each writes id, record and topics in
//! that order, and looks for them the other way round: who sees a record or a topic sees the id too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kaas_proto::format::cluster_id::{ClusterId, LIMIT_BYTES};
use kaas_proto::layout::{CLUSTER_DIRECTORY, CLUSTER_ID_FILE, DATA_CLUSTER_ID_FILE, TOPIC_ID_FILE};
use kaas_proto::reserve::is_full;
use kaas_proto::roots::Roots;
use kaas_proto::topic_name;

/// How long an id that is being written by another broker may take.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked for meanwhile.
const WRITE_LOOK: Duration = Duration::from_millis(10);

/// The cluster id can't be read or written, or does not fit the data directory.
#[derive(Debug, thiserror::Error)]
pub enum ClusterIdError {
    #[error("could not {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the data directory {data} still has cluster state in {data}/{CLUSTER_DIRECTORY}, which is not used with --cluster-dir {cluster}: \
         stop all brokers and move what is in {data}/{CLUSTER_DIRECTORY} to {cluster}, or leave out --cluster-dir (KAAS_CLUSTER_DIR). \
         Nothing was changed"
    )]
    NotMoved { data: String, cluster: String },
    #[error(
        "the data directory {data} belongs to {owner}, but {cluster} holds no cluster state (there is no {CLUSTER_ID_FILE}): {advice}. \
         Nothing was changed. If that state is lost for good, remove {data}/{DATA_CLUSTER_ID_FILE} and start once without --cluster-dir: \
         topics keep their records, committed offsets are lost"
    )]
    NoState { data: String, cluster: String, owner: String, advice: &'static str },
    #[error(
        "the data directory {data} belongs to cluster {owner}, but {cluster} holds the state of cluster {found}: give each data directory \
         the cluster directory that it was used with (--data-dir, --cluster-dir). Nothing was changed. If they do belong together, remove \
         {data}/{DATA_CLUSTER_ID_FILE}"
    )]
    Mixed { data: String, cluster: String, owner: ClusterId, found: ClusterId },
}

/// What lies in the place of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No file, or an empty one, which is what a crash leaves.
    Nothing,
    Unreadable,
    Id(ClusterId),
}

/// What both directories say, in the order in which it has to be looked for.
#[derive(Clone, Copy, Debug)]
struct Seen {
    record: Found,
    has_topics: bool,
    /// The data directory has a `__cluster` with something in it, beside the cluster directory that was given.
    has_other_state: bool,
    id: Found,
}

/// The id of the cluster, minted if there is none yet, once it is clear that both directories belong together. Blocks.
///
/// # Errors
/// They do not, or a volume refused.
pub fn load_or_create(roots: &Roots) -> Result<ClusterId, ClusterIdError> {
    let (record_path, directory) = (roots.data().join(DATA_CLUSTER_ID_FILE), roots.cluster());
    let seen = Seen {
        record: find(&record_path)?,
        has_topics: has_topics(roots.data())?,
        has_other_state: roots.own_cluster().is_some() && has_entries(&roots.data().join(CLUSTER_DIRECTORY))?,
        id: find(&directory.join(CLUSTER_ID_FILE))?,
    };
    check(seen, roots)?;
    match fs::create_dir(&directory) {
        // What else may be in its place is told by what comes next.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(ClusterIdError::Io { action: "create", path: directory, source: error });
        }
        _ => {}
    }
    let id = load_or_mint(&directory)?;
    if seen.record == Found::Nothing && id != ClusterId::unreadable() {
        return record(&record_path, &directory, id);
    }
    Ok(id)
}

/// Whether the directories belong together, as far as they say.
fn check(seen: Seen, roots: &Roots) -> Result<(), ClusterIdError> {
    let (data, cluster) = (roots.data().display().to_string(), roots.cluster().display().to_string());
    let is_apart = roots.own_cluster().is_some();
    if seen.has_other_state {
        return Err(ClusterIdError::NotMoved { data, cluster });
    }
    let owner = match (seen.record, seen.id) {
        (Found::Id(owner), Found::Id(found)) if owner != found => {
            return Err(ClusterIdError::Mixed { data, cluster, owner, found });
        }
        (Found::Id(owner), Found::Nothing) => format!("cluster {owner}"),
        (Found::Unreadable, Found::Nothing) => "a cluster".to_owned(),
        (Found::Nothing, Found::Nothing) if is_apart && seen.has_topics => "a cluster, as it has topics".to_owned(),
        _ => return Ok(()),
    };
    let advice = if is_apart {
        "give the directory that this data directory was used with (--cluster-dir, KAAS_CLUSTER_DIR), and see that its volume is mounted"
    } else {
        "give the directory that it was moved to with --cluster-dir (KAAS_CLUSTER_DIR)"
    };
    Err(ClusterIdError::NoState { data, cluster, owner, advice })
}

fn find(path: &Path) -> Result<Found, ClusterIdError> {
    match read(path) {
        Ok(content) if content.is_empty() => Ok(Found::Nothing),
        Ok(content) => Ok(ClusterId::decode(&content).map_or(Found::Unreadable, Found::Id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => Ok(Found::Unreadable),
        Err(source) => Err(ClusterIdError::Io { action: "read", path: path.to_owned(), source }),
    }
}

fn has_topics(data: &Path) -> Result<bool, ClusterIdError> {
    Ok(names(data)?.iter().any(|name| topic_name::check(name).is_ok() && data.join(name).join(TOPIC_ID_FILE).exists()))
}

fn has_entries(directory: &Path) -> Result<bool, ClusterIdError> {
    Ok(names(directory)?.iter().any(|name| !name.starts_with('.')))
}

/// Names that are not UTF-8 are none of ours.
fn names(directory: &Path) -> Result<Vec<String>, ClusterIdError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    let entries =
        entries.map_err(|source| ClusterIdError::Io { action: "list", path: directory.to_owned(), source })?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Writes down which cluster the data directory belongs to, and returns that. Of several brokers that mint an id at once one may find its own
/// replaced: then the record is made to follow.
fn record(path: &Path, directory: &Path, mut id: ClusterId) -> Result<ClusterId, ClusterIdError> {
    loop {
        match write_record(path, id) {
            Err(error) if is_full(&error) => {
                tracing::warn!(path = %path.display(), "no room to note which cluster the data directory belongs to; the next start does it");
                return Ok(id);
            }
            written => {
                written.map_err(|source| ClusterIdError::Io { action: "write", path: path.to_owned(), source })?
            }
        }
        match find(&directory.join(CLUSTER_ID_FILE))? {
            Found::Id(other) if other != id => id = other,
            _ => return Ok(id),
        }
    }
}

fn write_record(path: &Path, id: ClusterId) -> io::Result<()> {
    let directory = path.parent().expect("the record lies in the data directory");
    let temporary = directory.join(format!("{DATA_CLUSTER_ID_FILE}.{}.tmp", ClusterId::random()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(&id.encode())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        // It may not even be there.
        fs::remove_file(&temporary).ok();
        return renamed;
    }
    sync(directory)
}

/// What is in the cluster directory, minted if there is nothing.
fn load_or_mint(directory: &Path) -> Result<ClusterId, ClusterIdError> {
    let path = directory.join(CLUSTER_ID_FILE);
    let failed = |action| {
        let path = path.clone();
        move |source| ClusterIdError::Io { action, path, source }
    };
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(file) => fill(file, directory).map_err(failed("create"))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Whoever created it is about to write the id, or ended before it did.
            if path.is_file() && stays_empty(&path).map_err(failed("read"))? {
                let temporary = directory.join(format!("{CLUSTER_ID_FILE}.{}", ClusterId::random()));
                let file = File::create(&temporary).map_err(failed("create"))?;
                fill(file, directory).map_err(failed("create"))?;
                fs::rename(&temporary, &path).map_err(failed("create"))?;
                sync(directory).map_err(failed("create"))?;
            }
        }
        Err(error) => return Err(failed("create")(error)),
    }
    // Read by name whoever wrote it: of two that race, both use what stayed.
    if path.is_dir() {
        tracing::warn!(path = %path.display(), "a directory is in the place of the cluster id: put the file back; clients are told another id");
        return Ok(ClusterId::unreadable());
    }
    let content = read(&path).map_err(failed("read"))?;
    Ok(ClusterId::decode(&content).unwrap_or_else(|error| {
        let content = String::from_utf8_lossy(&content);
        tracing::warn!(
            path = %path.display(), content = content.trim(),
            "{error}: restore it, {DATA_CLUSTER_ID_FILE} in the data directory may have it; clients are told another id"
        );
        ClusterId::unreadable()
    }))
}

/// Whether nobody writes anything into the file for a while.
#[expect(clippy::disallowed_methods, reason = "runs on the main thread, before the control thread does")]
fn stays_empty(path: &Path) -> io::Result<bool> {
    let begun = Instant::now();
    while read(path)?.is_empty() {
        if begun.elapsed() > WRITE_PATIENCE {
            return Ok(true);
        }
        thread::sleep(WRITE_LOOK);
    }
    Ok(false)
}

/// As much as an id has, and a little more to tell it from something else.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(LIMIT_BYTES as u64).read_to_end(&mut content)?;
    Ok(content)
}

fn fill(mut file: File, directory: &Path) -> io::Result<()> {
    file.write_all(&ClusterId::random().encode())?;
    file.sync_all()?;
    sync(directory)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn roots() -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::from(root.path());
        (root, roots)
    }

    /// A data directory and a cluster directory beside it.
    fn apart() -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let (data, cluster) = (root.path().join("data"), root.path().join("cluster"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&cluster).unwrap();
        (root, Roots::new(data, Some(cluster)))
    }

    fn together(roots: &Roots) -> Roots {
        Roots::from(roots.data())
    }

    fn refused(roots: &Roots) -> String {
        load_or_create(roots).unwrap_err().to_string()
    }

    #[test]
    fn it_is_minted_once_and_recorded() {
        for (_root, roots) in [roots(), apart()] {
            let id = load_or_create(&roots).unwrap();
            assert_eq!(id.to_string().len(), 22);
            assert_eq!(load_or_create(&roots).unwrap(), id);
            assert_eq!(fs::read(roots.data().join(DATA_CLUSTER_ID_FILE)).unwrap(), id.encode());
            assert_eq!(names(&roots.cluster()).unwrap(), [CLUSTER_ID_FILE], "no temporary file stays");
        }
    }

    #[test]
    fn an_empty_file_is_what_a_crash_left() {
        let (_root, roots) = roots();
        fs::create_dir(roots.cluster()).unwrap();
        let path = roots.cluster().join(CLUSTER_ID_FILE);
        fs::write(&path, "").unwrap();
        let id = load_or_create(&roots).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), id.to_string());
        assert_eq!(names(&roots.cluster()).unwrap(), [CLUSTER_ID_FILE], "no temporary file stays");
    }

    #[test]
    fn something_else_is_left_alone_and_stops_nobody() {
        let (_root, roots) = roots();
        fs::create_dir(roots.cluster()).unwrap();
        let path = roots.cluster().join(CLUSTER_ID_FILE);
        for content in ["my-cluster".to_owned(), "x".repeat(100_000), "AAAA\n".to_owned()] {
            fs::write(&path, &content).unwrap();
            assert_eq!(load_or_create(&roots).unwrap(), ClusterId::unreadable());
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(load_or_create(&roots).unwrap(), ClusterId::unreadable());
        assert!(path.is_dir());
        assert_eq!(find(&roots.data().join(DATA_CLUSTER_ID_FILE)).unwrap(), Found::Nothing, "it is nobody's id");
    }

    #[test]
    fn a_data_directory_from_before_there_were_records_gets_one() {
        let (_root, roots) = roots();
        fs::create_dir(roots.cluster()).unwrap();
        fs::create_dir(roots.data().join("topic")).unwrap();
        let id = ClusterId::random();
        fs::write(roots.cluster().join(CLUSTER_ID_FILE), id.encode()).unwrap();
        assert_eq!(load_or_create(&roots).unwrap(), id);
        assert_eq!(find(&roots.data().join(DATA_CLUSTER_ID_FILE)).unwrap(), Found::Id(id));
    }

    #[test]
    fn cluster_state_moves_and_is_then_missed_where_it_was() {
        let (_root, roots) = apart();
        let id = load_or_create(&together(&roots)).unwrap();
        fs::create_dir(roots.data().join("topic")).unwrap();
        let said = refused(&roots);
        assert!(said.contains("move what is in") && said.contains("--cluster-dir"), "{said}");
        // Moved in part is not moved.
        fs::create_dir(together(&roots).cluster().join("coordinators")).unwrap();
        fs::rename(together(&roots).cluster().join(CLUSTER_ID_FILE), roots.cluster().join(CLUSTER_ID_FILE)).unwrap();
        assert!(matches!(load_or_create(&roots), Err(ClusterIdError::NotMoved { .. })));
        fs::remove_dir(together(&roots).cluster().join("coordinators")).unwrap();
        assert_eq!(load_or_create(&roots).unwrap(), id);

        let said = refused(&together(&roots));
        assert!(said.contains(&id.to_string()) && said.contains("moved to with --cluster-dir"), "{said}");
        fs::remove_dir(together(&roots).cluster()).unwrap();
        assert!(matches!(load_or_create(&together(&roots)), Err(ClusterIdError::NoState { .. })));
        assert!(!together(&roots).cluster().exists(), "nothing is made in its place");
        assert_eq!(load_or_create(&roots).unwrap(), id);
    }

    #[test]
    fn the_wrong_cluster_directory_is_refused_and_left_alone() {
        let (root, roots) = apart();
        let id = load_or_create(&roots).unwrap();
        let empty = root.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let wrong = Roots::new(roots.data().to_owned(), Some(empty.clone()));
        let said = refused(&wrong);
        assert!(said.contains(&id.to_string()) && said.contains("is mounted"), "{said}");
        assert_eq!(names(&empty).unwrap().len(), 0);

        let (_other, others) = apart();
        let other = load_or_create(&others).unwrap();
        let said = refused(&Roots::new(roots.data().to_owned(), Some(others.cluster())));
        assert!(said.contains(&id.to_string()) && said.contains(&other.to_string()), "{said}");
        assert_eq!(load_or_create(&others).unwrap(), other);
    }

    #[test]
    fn topics_without_a_record_do_not_begin_with_an_empty_cluster_directory() {
        let (_root, roots) = apart();
        let topic = roots.data().join("topic");
        fs::create_dir(&topic).unwrap();
        fs::write(topic.join(TOPIC_ID_FILE), "").unwrap();
        assert!(matches!(load_or_create(&roots), Err(ClusterIdError::NoState { .. })));
        // What is no topic does not count.
        fs::remove_file(topic.join(TOPIC_ID_FILE)).unwrap();
        load_or_create(&roots).unwrap();
    }

    #[test]
    fn brokers_that_start_at_once_agree() {
        for _ in 0..20 {
            let (_root, roots) = apart();
            let ids: Vec<_> = thread::scope(|scope| {
                let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| load_or_create(&roots))).collect();
                starts.into_iter().map(|start| start.join().unwrap().unwrap()).collect()
            });
            let id = load_or_create(&roots).unwrap();
            assert_eq!(find(&roots.data().join(DATA_CLUSTER_ID_FILE)).unwrap(), Found::Id(id));
            assert_eq!(ids, [id; 4]);
        }
    }
}
