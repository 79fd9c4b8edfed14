"""Stands for the work: says which thumbnail it would make of an image."""

import json
import sys

payload = json.load(sys.stdin)["payload"]
if "image" not in payload:
    print("the payload names no image", file=sys.stderr)
    sys.exit(65)  # no use in trying again: a dead letter
name, _, ending = payload["image"].rpartition(".")
json.dump({"thumbnail": f"{name}-128.{ending}"}, sys.stdout)
