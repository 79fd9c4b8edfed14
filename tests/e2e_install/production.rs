//! A release for work that matters, as docs/operations.md begins it: servers with passwords, pods that have their own,
//! history in PostgreSQL, and two operators. All of them speak TLS with Redis, whose certificate an authority of its own signs.

use std::io::Write;
use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use super::load::{Account, Work};
use super::scene::{Place, Scene};
use crate::kubernetes::{Image, Kubernetes};

const OLD: &str = "old-word";
const NEW: &str = "new-word";
/// Somebody else's, which stays as it is.
const PRODUCERS: &str = "producers-word";
const OPERATORS: &str = "app.kubernetes.io/component=operator";

/// A block of docs/operations.md: the first with these words in it.
fn block(words: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let text = std::fs::read_to_string(path).expect("the guide can be read");
    let blocks = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let found = blocks.map(|(_, block)| block).find(|block| block.contains(words));
    found.unwrap_or_else(|| panic!("no block has {words:?}")).to_owned()
}

/// Runs `redis-cli` in the pod of the test's Redis; what it is given goes on from there.
fn redis_cli(store: &str, password: &str) -> String {
    let login = if password.is_empty() { String::new() } else { format!("--no-auth-warning -a {password}") };
    format!("redis-cli() {{ kubectl exec -n {store} redis-0 -- redis-cli {login} \"$@\"; }}\n")
}

/// Has a Redis speak TLS on port 6380, and gives its authority to the release.
async fn speak_tls(scene: &Scene, system: &str, store: &str) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let said = scene
        .types(&format!(
            "{redis_cli}
             cd {folder}
             key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
             openssl req -x509 $key -subj /CN=authority -addext keyUsage=critical,keyCertSign -days 2 -keyout ca.key -out ca.crt
             openssl req $key -subj /CN=redis -keyout tls.key -out tls.csr
             printf '%s\\n' basicConstraints=critical,CA:FALSE extendedKeyUsage=serverAuth \
               subjectAltName=DNS:redis.{store}.svc >extensions
             openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -set_serial 2 -days 2 -extfile extensions -out tls.crt
             for file in ca.crt tls.crt tls.key; do
               kubectl exec -i -n {store} redis-0 -- sh -c \"cat >/data/$file\" <$file
             done
             redis-cli CONFIG SET tls-auth-clients no tls-ca-cert-file /data/ca.crt tls-cert-file /data/tls.crt \
               tls-key-file /data/tls.key tls-port 6380
             kubectl create secret generic windlass-redis-ca -n {system} --from-file=ca.crt",
            redis_cli = redis_cli(store, ""),
            folder = folder.path().display(),
        ))
        .await;
    assert!(said.lines().any(|line| line.trim() == "OK"), "{said}");
}

/// Makes a Secret with a URL, or changes it.
fn secret(namespace: &str, name: &str, url: &str) -> String {
    format!(
        "kubectl create secret generic {name} -n {namespace} --from-literal=url='{url}' --dry-run=client -o yaml |
           kubectl apply -f -\n"
    )
}

/// Such a release, and what it stands on.
pub(super) struct Production {
    pub(super) place: Place,
}

impl Production {
    /// Installs it with the guide's own values and the guide's own user for pods, and has Helm test it.
    pub(super) async fn install(scene: &Scene) -> Self {
        let ((), place) = tokio::join!(load_postgres(scene.cluster), scene.place());
        let production = Self { place };
        let Place { system, jobs, store } = &production.place;
        let (system, jobs, store) = (&**system, &**jobs, &**store);
        speak_tls(scene, system, store).await;
        let user = block("ACL SETUSER").replace("shop-emails", "pods").replace("PASSWORD", OLD);
        let user = user.replace("shop/emails", &format!("{jobs}/work"));
        let secrets = production.secrets(OLD)
            + &secret(
                system,
                "windlass-event-log",
                &format!("postgres://windlass:secret@postgres.{store}.svc/postgres"),
            );
        let said = scene
            .types(&format!(
                "{redis_cli}
                 {user}
                 redis-cli ACL SETUSER producers on '>{PRODUCERS}' '~*' '&*' +@all
                 redis-cli CONFIG SET requirepass {OLD}
                 kubectl apply -n {store} -f tests/e2e_install/postgres.yaml
                 {secrets}
                 kubectl rollout status -n {store} deployment/postgres --timeout=3m",
                redis_cli = redis_cli(store, "")
            ))
            .await;
        assert_eq!(said.lines().filter(|line| line.trim() == "OK").count(), 3, "{said}");

        // There is neither a registry nor the Prometheus operator.
        let values =
            block("existingSecret: windlass-event-log").replace("REGISTRY", "localhost").replace("TAG", "test");
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(values.as_bytes()).expect("it can be written");
        let said = scene
            .types(&format!(
                "helm install windlass charts/windlass -n {system} --wait --timeout 3m -f {} \
                   --set redis.caExistingSecret=windlass-redis-ca \
                   --set serviceMonitor.enabled=false,podMonitor.enabled=false,prometheusRule.enabled=false
                 helm test windlass -n {system}",
                file.path().display()
            ))
            .await;
        assert!(said.contains("Succeeded"), "{said}");
        production
    }

    /// The Secrets of the operator and of the pods, with a password.
    fn secrets(&self, password: &str) -> String {
        let Place { system, jobs, store } = &self.place;
        // Pods are told of the operator's authority.
        let url = |user: &str| format!("rediss://{user}:{password}@redis.{}.svc:6380", &**store);
        secret(jobs, "windlass-redis", &url("pods")) + &secret(system, "windlass-operator-redis", &url(""))
    }

    /// A queue and a pool in front of an application, ready; whoever produces for it has a password, too.
    pub(super) async fn work(&self, scene: &Scene) -> Work {
        let work = scene.work(&self.place).await;
        let jobs = &*self.place.jobs;
        scene
            .types(&format!("kubectl wait -n {jobs} --for=condition=EventLogRecording taskqueue/work --timeout=3m"))
            .await;
        Work { url: work.url.replace("redis://", &format!("redis://producers:{PRODUCERS}@")), ..work }
    }

    /// Gives users a new password beside the old one, and puts it into the Secrets.
    pub(super) async fn rotate(&self, scene: &Scene) {
        let (system, store) = (&*self.place.system, &*self.place.store);
        // A kubelet looks after a pod's files once in a while, and at once when something about the pod changes.
        let said = scene
            .types(&format!(
                "{redis_cli}
                 redis-cli ACL SETUSER default '>{NEW}'
                 redis-cli ACL SETUSER pods '>{NEW}'
                 {secrets}
                 kubectl annotate pods -n {system} -l {OPERATORS} rotated=yes",
                redis_cli = redis_cli(store, OLD),
                secrets = self.secrets(NEW)
            ))
            .await;
        assert_eq!(said.lines().filter(|line| line.trim() == "OK").count(), 2, "{said}");
    }

    /// What the pool's pods are made of.
    pub(super) async fn template(&self, scene: &Scene) -> String {
        let jobs = &*self.place.jobs;
        scene.types(&format!("kubectl get deployment/workers -n {jobs} -o 'jsonpath={{.spec.template}}'")).await
    }

    /// When the pool's pods are others than those of this template: takes the old password away, and ends every connection,
    /// so that nobody goes on with it.
    pub(super) async fn withdraw(&self, scene: &Scene, before: &str) {
        let (jobs, store) = (&*self.place.jobs, &*self.place.store);
        let rolls = async || {
            if self.template(scene).await == before { Err("the template is as it was".to_owned()) } else { Ok(()) }
        };
        scene.cluster.wait_for(jobs, "the pool to follow the new password", rolls).await;
        let said = scene
            .types(&format!(
                "kubectl rollout status -n {jobs} deployment/workers --timeout=3m
                 {redis_cli}
                 redis-cli ACL SETUSER default '<{OLD}'
                 redis-cli ACL SETUSER pods '<{OLD}'
                 redis-cli CLIENT KILL TYPE normal",
                redis_cli = redis_cli(store, NEW)
            ))
            .await;
        let killed = said.lines().last().and_then(|line| line.trim().parse::<u32>().ok());
        assert!(killed.is_some_and(|number| number > 0), "{said}");
        eprintln!("the old password is gone, and {} connections with it", killed.unwrap_or_default());
    }

    /// Waits until the event log has the end of every task, and checks that it has none twice.
    pub(super) async fn remembers(&self, scene: &Scene, account: &Account) {
        let (system, jobs) = (&*self.place.system, &*self.place.jobs);
        let ends = [("task.succeeded", account.tasks - account.failed), ("task.failed", account.failed)];
        for (event, number) in ends {
            let asked = format!(
                "kubectl exec -n {system} deploy/windlass -- windlass events -q {jobs}/work --type {event} --limit 100000 -o json"
            );
            let has_all = async || {
                let seen = scene.types(&asked).await.matches(&format!("\"{event}\"")).count();
                assert!(seen <= number, "{seen} events {event} of {number} tasks");
                if seen == number { Ok(()) } else { Err(format!("{seen} events {event}")) }
            };
            scene.cluster.wait_for(jobs, &format!("{number} events {event}"), has_all).await;
            eprintln!("the event log has {number} events {event}");
        }
    }
}

/// This machine's PostgreSQL, whatever its version, with what it needs to make and run a database.
async fn load_postgres(cluster: &Kubernetes) {
    static LOADED: OnceCell<()> = OnceCell::const_new();
    let load = async || {
        let newest = "ls -d /usr/lib/postgresql/*/bin /usr/pgsql*/bin 2>/dev/null | sort -V | tail -n 1";
        let asked = format!(r#"PATH="$({newest}):$PATH"; pg_config --bindir --sharedir --pkglibdir"#);
        let output = tokio::process::Command::new("sh").args(["-c", &asked]).output().await.expect("sh starts");
        let said = String::from_utf8(output.stdout).expect("paths are UTF-8");
        let folders: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
        let [programs, shared, libraries] = &folders[..] else { panic!("there is no PostgreSQL: run `make servers`") };
        let at = |path: &Path| path.to_str().expect("UTF-8").to_owned();

        // It wants to know its user's name.
        let folder = tempfile::tempdir().expect("a temporary directory");
        let users = folder.path().join("passwd");
        std::fs::write(&users, "postgres:x:999:999::/:/bin/sh\n").expect("it can be written");
        let mut image = Image::new("postgres").shell().file(&users, "/etc/passwd").tree(shared, &at(shared));
        for name in ["postgres", "initdb"] {
            let program = at(&programs.join(name));
            image = image.program(&program, &program).link(&program, &format!("/usr/bin/{name}"));
        }
        for name in ["plpgsql.so", "dict_snowball.so"] {
            let library = at(&libraries.join(name));
            image = image.program(&library, &library);
        }
        // Some are built to look for time zones where the system has them.
        let utc = Path::new("/usr/share/zoneinfo/UTC");
        if utc.is_file() {
            image = image.file(utc, &at(utc));
        }
        image.load(cluster).await;
    };
    LOADED.get_or_init(load).await;
}
