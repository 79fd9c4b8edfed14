//! What can be said of the Dockerfile without building it; `make image` builds it and checks the image.

use std::fs;
use std::path::Path;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The Dockerfile's instructions, each on one line, without comments.
fn instructions() -> Vec<String> {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    lines
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect()
}

/// What follows the instructions that begin so.
fn all(beginning: &str) -> Vec<String> {
    instructions().iter().filter_map(|line| line.strip_prefix(beginning)).map(str::to_owned).collect()
}

/// The only one.
fn one(beginning: &str) -> String {
    let found = all(beginning);
    assert_eq!(found.len(), 1, "{beginning} is there {} times", found.len());
    found.into_iter().next().expect("one")
}

/// The first value of a key in Cargo.toml, which is the package's.
fn cargo(key: &str) -> String {
    let beginning = format!("{key} = \"");
    let manifest = read("Cargo.toml");
    let value = manifest.lines().find_map(|line| line.strip_prefix(&beginning)?.strip_suffix('"'));
    value.unwrap_or_else(|| panic!("Cargo.toml has no {key}")).to_owned()
}

#[test]
fn it_is_built_with_the_rust_that_the_crate_asks_for() {
    let image = one("ARG RUST_IMAGE=");
    let tag = image.strip_prefix("docker.io/library/rust:").expect("Rust's official image, with its registry");
    assert_eq!(tag, format!("{}-slim-bookworm", cargo("rust-version")));
}

#[test]
fn its_labels_are_the_crates() {
    assert_eq!(one("ARG VERSION="), env!("CARGO_PKG_VERSION"));
    let labels = one("LABEL ");
    for (label, value) in [
        ("title", cargo("name")),
        ("description", cargo("description")),
        ("version", "${VERSION}".to_owned()),
        ("revision", "${REVISION}".to_owned()),
        ("licenses", cargo("license")),
    ] {
        let wanted = format!("org.opencontainers.image.{label}=\"{value}\"");
        assert!(labels.contains(&wanted), "{wanted} is not among {labels}");
    }
}

#[test]
fn what_runs_is_the_program_alone_for_nobody_in_particular() {
    let whole = instructions();
    let last = whole.iter().rposition(|line| line.starts_with("FROM ")).expect("a stage");
    assert_eq!(whole[last], "FROM scratch");
    let user = one("USER ");
    for number in user.split(':') {
        // A name would need /etc/passwd, and runAsNonRoot refuses it.
        assert!(number.parse::<u32>().is_ok_and(|number| number >= 1000), "USER {user}");
    }
    assert_eq!(one("ENTRYPOINT "), r#"["/usr/bin/windlass"]"#);
    assert!(whole[last..].iter().all(|line| !line.starts_with("RUN ")), "there is no shell in the last stage");
}

#[test]
fn what_it_copies_is_there_and_nothing_else_is_sent_to_the_builder() {
    let mut copied = Vec::new();
    for copy in all("COPY ").iter().filter(|copy| !copy.starts_with("--from=")) {
        let mut words = copy.split(' ').map(str::to_owned).collect::<Vec<_>>();
        words.pop();
        copied.append(&mut words);
    }
    copied.sort();
    for source in &copied {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(source).exists(), "there is no {source}");
    }
    let ignore = read(".dockerignore");
    let rules = ignore.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect::<Vec<_>>();
    assert_eq!(rules.first(), Some(&"*"));
    let mut sent = rules.iter().skip(1).filter_map(|rule| rule.strip_prefix('!')).collect::<Vec<_>>();
    sent.sort_unstable();
    assert_eq!(sent, copied);
}

#[test]
fn sources_include_only_what_is_copied() {
    // A file outside src/ would be missing in the builder, and only there.
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let src = folders[0].clone();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("readable");
            for macro_name in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
                for rest in text.split(macro_name).skip(1) {
                    let included = rest.split('"').next().expect("a name");
                    let file = path.with_file_name(included);
                    let file = file.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                    assert!(file.starts_with(&src), "{} includes {included}", path.display());
                }
            }
        }
    }
}

#[test]
fn it_knows_the_target_of_both_processors() {
    let text = read("Dockerfile");
    for (arch, cpu, triple) in
        [("amd64", "x86_64", "X86_64_UNKNOWN_LINUX_MUSL"), ("arm64", "aarch64", "AARCH64_UNKNOWN_LINUX_MUSL")]
    {
        assert!(text.contains(&format!("{arch}) cpu={cpu} ")), "{arch} has no processor");
        assert!(text.contains(&format!("CARGO_TARGET_{triple}_LINKER={cpu}-linux-gnu-gcc")), "{cpu} has no linker");
    }
    assert!(one("RUN --mount=type=cache").contains("--locked"), "Cargo.lock decides what is built");
}
