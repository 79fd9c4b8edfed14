//! The directory that keeps what survives a restart, for one `windlass dev` at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::guard;
use super::screen::{Screen, Tone};

/// The directory, held as long as this lives.
pub(super) struct DataDir {
    path: PathBuf,
    id: String,
    _lock: File,
}

impl DataDir {
    /// Makes it if need be, and takes it for this process.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        fs::create_dir_all(path).with_context(|| format!("the data directory {shown} cannot be made"))?;
        // It may come to hold the URL of a Redis, and it holds payloads.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("the data directory {shown} belongs to somebody else"))?;
        let path = path.canonicalize().with_context(|| format!("the data directory {shown} cannot be found"))?;
        let lock = take(&path)?;
        // Nothing in here belongs into a repository.
        write(&path.join(".gitignore"), "*\n")?;
        for file in [CHILDREN, REDIS] {
            write(&path.join(file), "")?;
        }
        fs::create_dir_all(path.join("redis")).context("the directory of Redis cannot be made")?;
        let id = identity(&path)?;
        Ok(Self { path, id, _lock: lock })
    }

    /// Names it, wherever it is moved.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// A file or directory in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The lock that workers and handlers hold.
    pub(super) fn children(&self) -> PathBuf {
        self.join(CHILDREN)
    }

    /// The lock that Redis holds.
    pub(super) fn redis(&self) -> PathBuf {
        self.join(REDIS)
    }

    /// Waits for what a `windlass dev` that was killed has left behind: it is ending by itself.
    pub(super) async fn wait_for_leftovers(&self, screen: &Screen) {
        for (lock, what) in [(self.children(), "workers"), (self.redis(), "redis-server")] {
            let busy = File::open(&lock).is_ok_and(|file| file.try_lock().is_err());
            if busy {
                let text = format!("the {what} of a windlass dev that was killed are ending; waiting for them");
                screen.say(Tone::Faint, text);
                guard::free(&lock).await;
            }
        }
    }

    /// Writes what a shell in another terminal needs; it is gone when this process is.
    pub(super) fn publish(&self, environment: &[(&str, &str)]) -> Result<()> {
        let quoted = |value: &str| format!("'{}'", value.replace('\'', r"'\''"));
        let lines: Vec<String> =
            environment.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect();
        // A reader must never see half of it.
        let (draft, file) = (self.join("env.new"), self.join(ENVIRONMENT));
        write(&draft, &lines.concat())?;
        fs::rename(&draft, &file).with_context(|| format!("{} cannot be written", file.display()))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path.join(ENVIRONMENT));
    }
}

const LOCK: &str = "lock";
const CHILDREN: &str = "children.lock";
const REDIS: &str = "redis.lock";
/// What a shell may `source`.
pub(super) const ENVIRONMENT: &str = "env";

/// The lock says whose it is; the kernel lets go of it however its holder ends.
fn take(path: &Path) -> Result<File> {
    let file = path.join(LOCK);
    let mut lock = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(&file)
        .with_context(|| format!("{} cannot be opened", file.display()))?;
    if lock.try_lock().is_err() {
        let mut holder = String::new();
        let _ = lock.read_to_string(&mut holder);
        bail!(
            "another windlass dev (process {}) uses the data directory {}: stop it, or give this one its own with --data-dir",
            holder.trim(),
            path.display()
        );
    }
    lock.set_len(0)?;
    write!(lock, "{}", std::process::id())?;
    let _ = fs::remove_file(path.join(ENVIRONMENT));
    Ok(lock)
}

/// An id that is made once.
fn identity(path: &Path) -> Result<String> {
    let file = path.join("id");
    if let Ok(id) = fs::read_to_string(&file)
        && !id.trim().is_empty()
    {
        return Ok(id.trim().to_owned());
    }
    let id = uuid::Uuid::now_v7().to_string();
    write(&file, &id)?;
    Ok(id)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))
}
