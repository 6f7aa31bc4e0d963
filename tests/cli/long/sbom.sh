#!/bin/sh
# `make sbom`: SPDX that a reader takes, of this very program and all it loads, with the same bytes each time.
. "$2/tests/lib/cli.sh"
command -v dpkg-query >/dev/null || { echo "SKIPPED: no dpkg-query; the list of what the program is made of was NOT tried" >&2; exit 77; }
build=$(dirname "$command")
sh "$root/scripts/sbom" "$build" >"$work/a.json" || fail "scripts/sbom"
sh "$root/scripts/sbom" "$build" >"$work/b.json"
cmp "$work/a.json" "$work/b.json" || fail "other bytes the second time"
ldd "$command" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | while read -r file; do basename "$(readlink -f "$file")"; done | sort -u >"$work/loaded"
python3 - "$work/a.json" "$(sha256sum "$command" | cut -d' ' -f1)" "$work/loaded" <<'END'
import json, sys
spdx = json.load(open(sys.argv[1]))
for key in ("spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo", "packages", "relationships"):
    assert spdx.get(key), f"{key} is missing"
assert spdx["spdxVersion"] == "SPDX-2.3" and spdx["dataLicense"] == "CC0-1.0"
ids = [package["SPDXID"] for package in spdx["packages"]]
assert len(ids) == len(set(ids)), "two packages of one id"
for package in spdx["packages"]:
    assert package["name"] and package["versionInfo"], package
    assert package["downloadLocation"] and len(package["checksums"][0]["checksumValue"]) == 64, package
own = [package for package in spdx["packages"] if package["name"] == "neuronmlp"]
assert len(own) == 1 and own[0]["checksums"][0]["checksumValue"] == sys.argv[2], "not of this program"
for relation in spdx["relationships"]:
    assert relation["spdxElementId"] in ids + ["SPDXRef-DOCUMENT"] and relation["relatedSpdxElement"] in ids, relation
files = {package.get("packageFileName") for package in spdx["packages"]}
missing = [name for name in open(sys.argv[3]).read().split() if name not in files]
assert not missing, f"loaded, but not in the list: {missing}"
print(f"ok: {len(ids)} packages")
END
