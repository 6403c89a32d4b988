//! The container image, as far as it can be checked without building one: what deploy/Dockerfile says against what is there.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::process::Command;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What follows the word in the lines that begin with it; a line that ends with a backslash goes on.
fn lines(dockerfile: &str, word: &str) -> Vec<String> {
    let joined = dockerfile.replace("\\\n", " ");
    joined.lines().filter_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned()).collect()
}

#[test]
fn the_image_starts_what_the_build_makes() {
    let dockerfile = read("deploy/Dockerfile");
    let built = Path::new(env!("CARGO_BIN_EXE_kaas")).file_name().unwrap().to_str().unwrap();
    let [run] = &lines(&dockerfile, "RUN ")[..] else { panic!("{dockerfile}") };
    let [binary, data] = &lines(&dockerfile, "COPY --from=build ")[..] else { panic!("{dockerfile}") };
    let (from, to) = binary.split_once(' ').unwrap();
    assert!(run.contains("cargo build --release --locked"), "{run}");
    assert!(run.contains(&format!("cp target/release/{built} {from}")), "{run}");
    assert_eq!(lines(&dockerfile, "ENTRYPOINT "), [format!("[\"{to}\"]")]);
    assert!(run.contains("mkdir /data") && data.ends_with("/data /data"), "{data}");

    // What is locked is in the repository, and what is built is not left out.
    assert!(read("Cargo.lock").contains("name = \"kaas\""));
    let ignored = read("deploy/Dockerfile.dockerignore");
    let manifest = read("Cargo.toml");
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty()) {
        assert!(!ignored.lines().any(|line| line == member), "{member} is not copied");
    }
}

#[test]
fn the_compiler_of_the_image_is_new_enough_and_its_libraries_are_those_of_the_base() {
    let dockerfile = read("deploy/Dockerfile");
    let from = lines(&dockerfile, "FROM ");
    let number = |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap()).collect() };
    let (version, release) = from[0].strip_prefix("rust:").unwrap().split_once('-').unwrap();
    let manifest = read("Cargo.toml");
    let needed = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(number(version) >= number(needed), "rust {version}, and {needed} is needed");
    // Debian 12 by either name: the C library is the same.
    assert!(release.starts_with("bookworm") && from[1].contains("cc-debian12"), "{from:?}");
    let output = Command::new("ldd").arg(env!("CARGO_BIN_EXE_kaas")).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    for library in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let name = library.rsplit('/').next().unwrap();
        let of_base = ["linux-vdso.so", "libc.so", "libm.so", "libgcc_s.so", "ld-linux"];
        assert!(of_base.iter().any(|known| name.starts_with(known)), "{name} is not in the base image");
    }
}

#[test]
fn image_and_pod_agree() {
    let (dockerfile, pod) = (read("deploy/Dockerfile"), read("deploy/kaas.yaml"));
    let [user] = &lines(&dockerfile, "USER ")[..] else { panic!("{dockerfile}") };
    let (user, group) = user.split_once(':').unwrap();
    for line in [format!("runAsUser: {user}"), format!("runAsGroup: {group}"), format!("fsGroup: {group}")] {
        assert!(pod.contains(&line), "{line} is missing");
    }
    assert!(dockerfile.contains(&format!("--chown={user}:{group} ")));
    let [ports] = &lines(&dockerfile, "EXPOSE ")[..] else { panic!("{dockerfile}") };
    assert_eq!(ports.split(' ').count(), pod.matches("containerPort: ").count());
    for port in ports.split(' ') {
        assert!(pod.contains(&format!("containerPort: {port}}}")), "{port}");
    }
    assert!(pod.contains("{name: KAAS_DATA_DIR, value: /data}") && pod.contains("mountPath: /data}"));
    let profile = pod.split_once("localhostProfile: profiles/").unwrap().1.lines().next().unwrap();
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/seccomp").join(profile).exists(), "{profile}");
}
