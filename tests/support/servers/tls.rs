//! Certificates for servers that speak TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The extensions of both certificates, and the section that `openssl req` insists on.
///
/// They are asked for explicitly because clients that verify (rustls among them) refuse an authority
/// that is not marked as one, a server certificate that is, and one that only has a common name.
const OPENSSL_CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
";

/// The files of one server's certificate authority and certificate.
#[derive(Debug)]
pub(super) struct Certificates {
    /// The authority's certificate, which a client must trust.
    pub(super) authority: PathBuf,
    /// The server's certificate, for `localhost` and `127.0.0.1`.
    pub(super) certificate: PathBuf,
    /// The server's private key.
    pub(super) key: PathBuf,
}

impl Certificates {
    /// Makes an authority and a certificate signed by it in `dir`, with the `openssl` command: they
    /// are made anew for each server, so that none in the repository can expire or leak.
    ///
    /// # Panics
    ///
    /// If `openssl` is missing or fails, with what it said.
    pub(super) fn generate(dir: &Path) -> Self {
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
        fs::write(dir.join("openssl.cnf"), OPENSSL_CONFIG).expect("the configuration of openssl must be written");
        openssl(
            dir,
            &format!(
                "req -x509 {new_key} -extensions authority -subj /CN=windlass-test-authority \
                 -days 2 -keyout ca.key -out ca.pem"
            ),
        );
        openssl(dir, &format!("req {new_key} -subj /CN=localhost -keyout server.key -out server.csr"));
        openssl(
            dir,
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -set_serial 2 -days 2 \
             -extfile openssl.cnf -extensions server -out server.pem",
        );
        Self { authority: dir.join("ca.pem"), certificate: dir.join("server.pem"), key: dir.join("server.key") }
    }
}

/// Runs `openssl` in `dir`, with arguments that contain no spaces.
fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("the `openssl` command must be installed for tests with TLS");
    assert!(output.status.success(), "`openssl {arguments}` failed: {}", String::from_utf8_lossy(&output.stderr));
}
