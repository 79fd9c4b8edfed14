//! Container images from files of this machine, with no daemon and no registry.

use std::path::{Path, PathBuf};

use tokio::process::Command;
use tokio::sync::OnceCell;

use super::{Kubernetes, harness};
use crate::support::servers::Flavor;

/// Loads an archive into somebody's own cluster: a command that gets the archive's path as its last
/// word, for instance `kind load image-archive`.
pub const LOADER: &str = "WINDLASS_TEST_LOAD_IMAGE";

/// The archive that `make image` left, to test the Dockerfile's image itself, as `make image-test` does. Otherwise, and so in
/// `make test`, a stand-in is made of the program that the tests were built with, and the libraries that it is linked with.
pub const BUILT_IMAGE: &str = "WINDLASS_TEST_IMAGE";

/// An image that is being put together.
///
/// ```no_run
/// let name = Image::new("web").program("/usr/bin/web", "/web").entrypoint(&["/web"]).load(cluster).await;
/// ```
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    arguments: Vec<String>,
}

impl Image {
    /// An image with nothing in it but `/tmp`; pods call it `localhost/NAME:test`.
    pub fn new(name: &str) -> Self {
        let name = format!("localhost/{name}:test");
        Self { arguments: vec![format!("--name={name}")], name }
    }

    fn with(mut self, argument: String) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Adds a program of this machine, with the libraries that it is linked with.
    pub fn program(self, source: impl AsRef<Path>, path: &str) -> Self {
        self.with(format!("--program={}:{path}", source.as_ref().display()))
    }

    /// Adds a file.
    pub fn file(self, source: impl AsRef<Path>, path: &str) -> Self {
        self.with(format!("--file={}:{path}", source.as_ref().display()))
    }

    /// Adds a folder with all that is in it.
    pub fn tree(self, source: impl AsRef<Path>, path: &str) -> Self {
        self.with(format!("--tree={}:{path}", source.as_ref().display()))
    }

    /// Adds a symbolic link.
    pub fn link(self, target: &str, path: &str) -> Self {
        self.with(format!("--link={target}:{path}"))
    }

    /// Adds this machine's Python with its standard library, as `/usr/bin/python3`.
    pub fn python(self) -> Self {
        self.with("--python".to_owned())
    }

    /// Adds `/bin/sh` and the usual small programs.
    pub fn shell(self) -> Self {
        self.with("--shell".to_owned())
    }

    /// Adds a label, which makes it another image.
    pub fn label(self, name: &str, value: &str) -> Self {
        self.with(format!("--label={name}={value}"))
    }

    /// What runs unless a pod says otherwise.
    pub fn entrypoint(self, command: &[&str]) -> Self {
        self.with(format!("--entrypoint={}", serde_json::json!(command)))
    }

    /// Who it runs as unless a pod says otherwise; root by default.
    pub fn user(self, number: u32) -> Self {
        self.with(format!("--user={number}"))
    }

    /// Makes the image and puts it on every node; returns the name that pods call it by.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub async fn load(self, cluster: &Kubernetes) -> String {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let archive = dir.path().join("image.tar");
        let mut make = Command::new(harness("cluster.py"));
        run(make.arg("image").arg("--out").arg(&archive).args(&self.arguments)).await;
        cluster.load(&archive).await;
        self.name
    }
}

/// The names of images that tests share, once a cluster has them. Each cluster has its own nodes.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    windlass: OnceCell<String>,
    redis: OnceCell<String>,
    python: OnceCell<String>,
}

impl Kubernetes {
    /// The image `localhost/windlass:test` with the binary that these tests were built with.
    pub async fn windlass_image(&self) -> &str {
        let load = async || {
            if let Some(archive) = std::env::var_os(BUILT_IMAGE) {
                return self.load_built(Path::new(&archive)).await;
            }
            self.load_windlass(Image::new("windlass")).await
        };
        self.images.windlass.get_or_init(load).await
    }

    /// The image `localhost/windlass:next`, which does the same and is another one.
    pub async fn next_windlass_image(&self) {
        let image = Image::new("windlass-next").label("version", "next");
        let made = if let Some(archive) = std::env::var_os(BUILT_IMAGE) {
            image.with(format!("--like={}", Path::new(&archive).display())).load(self).await
        } else {
            self.load_windlass(image).await
        };
        self.name_image(&made, "localhost/windlass:next").await;
    }

    /// Puts the binary that these tests were built with into an image.
    async fn load_windlass(&self, image: Image) -> String {
        // Without its symbols it is a fifth of the size, and loads in a fifth of the time.
        let dir = tempfile::tempdir().expect("a temporary directory");
        let small: PathBuf = dir.path().join("windlass");
        run(Command::new("strip").arg("-o").arg(&small).arg(env!("CARGO_BIN_EXE_windlass"))).await;
        let image = image.program(&small, "/usr/bin/windlass").entrypoint(&["/usr/bin/windlass"]).user(65532);
        image.load(self).await
    }

    async fn load_built(&self, archive: &Path) -> String {
        assert!(archive.is_file(), "{BUILT_IMAGE} is {}, where no archive is: make image", archive.display());
        self.load(archive).await;
        let name = "localhost/windlass:test".to_owned();
        self.name_image(&format!("localhost/windlass:{}", env!("CARGO_PKG_VERSION")), &name).await;
        name
    }

    /// The image `localhost/redis:test`: Redis 7.0, with a shell and `redis-cli`.
    pub async fn redis_image(&self) -> &str {
        let load = async || {
            let server = Flavor::Redis70.binary();
            let image = Image::new("redis").shell().program(&server, "/usr/bin/redis-server");
            let image = image.program(server.with_file_name("redis-cli"), "/usr/bin/redis-cli");
            image.entrypoint(&["/usr/bin/redis-server"]).load(self).await
        };
        self.images.redis.get_or_init(load).await
    }

    /// The image `localhost/python:test`: Python with its standard library, and a shell.
    pub async fn python_image(&self) -> &str {
        let load = async || Image::new("python").shell().python().entrypoint(&["/usr/bin/python3"]).load(self).await;
        self.images.python.get_or_init(load).await
    }

    /// The image `localhost/busybox:test`: a shell. Nodes of ours have it from the start.
    pub(super) async fn load_shell_image(&self) {
        Image::new("busybox").shell().entrypoint(&["/bin/sh"]).load(self).await;
    }

    /// Puts an archive on every node.
    async fn load(&self, archive: &Path) {
        match &self.keeper {
            Some(keeper) => {
                let mut load = Command::new(harness("cluster.py"));
                run(load.arg("load").arg("--dir").arg(keeper.berth.dir()).arg(archive)).await;
            }
            // Without a loader the images are there already, or the pods will say that they are not.
            None => {
                if let Ok(loader) = std::env::var(LOADER) {
                    run(Command::new("sh").arg("-c").arg(format!("{loader} \"$0\"")).arg(archive)).await;
                }
            }
        }
    }
}

/// Runs a command to its end.
async fn run(command: &mut Command) {
    let output = command.output().await.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
}
