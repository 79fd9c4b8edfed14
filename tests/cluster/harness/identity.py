"""Who is who in a cluster: its authority, its server's certificate, the users' tokens and kubeconfigs.

Everything is made anew for each cluster, and lives as long as it. Users have tokens in a file of the
apiserver's instead of certificates: one line each, and nothing to sign.
"""

import base64
import json
import os
import secrets

from .process import command

# The service range's first address, which is the apiserver's own Service.
API_SERVICE = "10.96.0.1"
DNS_NAMES = ["localhost", *("kubernetes" + rest for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local"))]

# user: (its name in Kubernetes, its group)
USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "node1": ("system:node:node1", "system:nodes"),
    "node2": ("system:node:node2", "system:nodes"),
}


class Identity:
    """The files of one cluster's identities."""

    def __init__(self, folder, addresses):
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.ca = folder / "ca.crt"
        self.ca_key = folder / "ca.key"
        self.server = folder / "server.crt"
        self.server_key = folder / "server.key"
        self.accounts = folder / "accounts.pub"
        self.accounts_key = folder / "accounts.key"
        self.tokens_file = folder / "tokens.csv"
        self._make_certificates(addresses)
        self.tokens = {user: secrets.token_hex(16) for user in USERS}
        with open(self.tokens_file, "w", encoding="utf-8", opener=private) as file:
            for user, (name, group) in USERS.items():
                file.write(f'{self.tokens[user]},{name},{user},"{group}"\n')

    def _make_certificates(self, addresses):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365"]
        command(["openssl", "req", "-x509", *curve, "-subj", "/CN=windlass-tests", "-keyout", self.ca_key, "-out", self.ca,
             "-addext", "keyUsage=critical,keyCertSign,cRLSign"])
        # The same certificate is the apiserver's towards clients and towards kubelets.
        names = ",".join([*(f"DNS:{name}" for name in DNS_NAMES), *(f"IP:{address}" for address in addresses)])
        command(["openssl", "req", "-x509", *curve, "-CA", self.ca, "-CAkey", self.ca_key,
             "-subj", "/O=system:masters/CN=kube-apiserver", "-keyout", self.server_key, "-out", self.server,
             "-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName={names}",
             "-addext", "extendedKeyUsage=serverAuth,clientAuth"])
        command(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.accounts_key])
        command(["openssl", "ec", "-in", self.accounts_key, "-pubout", "-out", self.accounts])

    def kubeconfig(self, user, url, path=None):
        """Writes the kubeconfig of a user and returns its path. JSON is YAML, too."""
        path = path or self.folder / f"{user}.kubeconfig"
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        with open(path, "w", encoding="utf-8", opener=private) as file:
            json.dump(config, file, indent=1)
        return path


def private(path, flags):
    """Opens a file that only its owner can read."""
    return os.open(path, flags, 0o600)
