#!/usr/bin/env python3
"""A real Kubernetes on this machine, for the tests and for people.

  cluster.py up --dir DIR [--level api|node] [--nodes N] [--port P] [--etcd-port P]
        runs a cluster until it is told to end (SIGTERM, SIGINT), and then ends and removes all that it
        made but DIR; DIR/ready.json says when it is up
  cluster.py start, stop      the same in the background, for `make cluster` and `make cluster-down`
  cluster.py check            whether this machine can run pods; if not, one sentence says why not, and the code is 3
  cluster.py load [--dir DIR] ARCHIVE    puts an image on every node, of `make cluster`'s by default
  cluster.py image ...        makes an OCI image from files; see harness/image.py

Levels. `api`: etcd, apiserver, controller manager on loopback; no root. `node`: the same with nodes
that run pods, in namespaces of their own (harness/sandbox.py); needs root.
"""

import sys

from harness import cli

sys.exit(cli.main(sys.argv[1:]))
