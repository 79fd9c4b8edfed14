//! Markdown, as far as it is read here: headings, links, fenced blocks and words in backticks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents beside those in docs/.
pub(super) const OTHERS: [&str; 5] =
    ["README.md", "charts/windlass/README.md", "examples/README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"];

/// Where the crate is.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the crate.
pub(super) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A document.
pub(super) struct Document {
    /// Inside the crate.
    pub(super) path: String,
    /// Its lines outside of fenced blocks, with their numbers.
    pub(super) prose: Vec<(usize, String)>,
    pub(super) blocks: Vec<Block>,
}

/// A fenced block.
pub(super) struct Block {
    /// Where it is, for whoever has to mend it.
    pub(super) place: String,
    pub(super) language: String,
    pub(super) text: String,
}

/// A heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heading {
    pub(super) level: usize,
    pub(super) title: String,
    /// Where in the prose it stands.
    pub(super) at: usize,
}

/// Every document that people read. One that is missing is told of once, by the test of links.
pub(super) fn all() -> Vec<Document> {
    let mut paths = guides();
    paths.extend(OTHERS.map(str::to_owned));
    paths.iter().filter(|path| root().join(path).exists()).map(|path| Document::read(path)).collect()
}

/// What is in docs/.
pub(super) fn guides() -> Vec<String> {
    let files = fs::read_dir(root().join("docs")).expect("docs/");
    let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    let mut paths: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    paths.sort();
    paths
}

impl Document {
    pub(super) fn read(path: &str) -> Self {
        let whole = text(path);
        let (mut prose, mut blocks) = (Vec::new(), Vec::new());
        let mut open: Option<(String, Block)> = None;
        for (number, line) in (1..).zip(whole.lines()) {
            let bare = line.trim_start();
            let fence: String = bare.chars().take_while(|c| *c == '`').collect();
            match open.take() {
                Some((opened, block)) if bare.trim_end() == opened => blocks.push(block),
                Some((opened, mut block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                    open = Some((opened, block));
                }
                None if fence.len() >= 3 => {
                    let language = bare[fence.len()..].trim().to_owned();
                    open = Some((fence, Block { place: format!("{path}:{number}"), language, text: String::new() }));
                }
                None => prose.push((number, line.to_owned())),
            }
        }
        assert!(open.is_none(), "{path}: a fenced block does not end");
        Self { path: path.to_owned(), prose, blocks }
    }

    pub(super) fn headings(&self) -> Vec<Heading> {
        let heading = |(at, (_, line)): (usize, &(usize, String))| {
            let level = line.chars().take_while(|c| *c == '#').count();
            let title = line[level..].strip_prefix(' ').filter(|_| level > 0)?;
            Some(Heading { level, title: title.trim().to_owned(), at })
        };
        self.prose.iter().enumerate().filter_map(heading).collect()
    }

    /// What a link may name behind its `#`, as GitHub makes it of headings.
    pub(super) fn anchors(&self) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        for heading in self.headings() {
            let slug = slug(&heading.title);
            let free = (1..).map(|n| format!("{slug}-{n}")).find(|other| !known.contains(other)).expect("one is free");
            if !known.insert(slug) {
                known.insert(free);
            }
        }
        known
    }

    /// Targets of links, with the numbers of their lines.
    pub(super) fn links(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (number, line) in &self.prose {
            // A link's words may be in backticks; what is in backticks is no link.
            for (at, _) in line.match_indices("](") {
                let in_code = line[..at].matches('`').count() % 2 == 1;
                if let Some(end) = line[at..].find(')').filter(|_| !in_code) {
                    found.push((*number, line[at + 2..at + end].trim().to_owned()));
                }
            }
        }
        found
    }

    /// Words in backticks, with the numbers of their lines.
    pub(super) fn code(&self) -> Vec<(usize, String)> {
        let words = |(number, line): &(usize, String)| {
            let parts: Vec<&str> = line.split('`').collect();
            // Else what follows would be read inside out.
            assert!(parts.len() % 2 == 1, "{}:{number}: words in backticks go on in the next line", self.path);
            let inside = parts.into_iter().skip(1).step_by(2).map(|word| word.replace("\\|", "|"));
            inside.map(|word| (*number, word)).collect::<Vec<_>>()
        };
        self.prose.iter().flat_map(words).collect()
    }

    /// The lines below a heading, up to the next one of any level.
    pub(super) fn below(&self, heading: &Heading) -> Vec<&str> {
        let lines = self.prose[heading.at + 1..].iter().map(|(_, line)| line.as_str());
        lines.take_while(|line| !line.starts_with('#')).collect()
    }
}

/// The cells of the rows of a table, without its head.
pub(super) fn rows(lines: &[&str]) -> Vec<Vec<String>> {
    let row = |line: &&str| -> Option<Vec<String>> {
        let inner = line.strip_prefix("| ")?.trim_end().strip_suffix('|')?;
        Some(inner.split(" |").map(|cell| cell.trim().to_owned()).collect())
    };
    let table = lines.iter().skip_while(|line| !line.starts_with("|--")).skip(1);
    let cells = table.map_while(row);
    cells.map(|row| row.into_iter().filter(|cell| !cell.is_empty()).collect()).collect()
}

/// As GitHub does it: small letters, no punctuation, hyphens for spaces.
fn slug(title: &str) -> String {
    let plain = title.replace('`', "").to_lowercase();
    let kept = plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A path without `.` and `..`; `None` if it leads out of the crate.
pub(super) fn tidy(path: &Path) -> Option<PathBuf> {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => tidy.push(name),
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => tidy.pop().then_some(())?,
            _ => return None,
        }
    }
    Some(tidy)
}
