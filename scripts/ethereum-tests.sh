#!/bin/sh
# Prints the directory with the fixtures of github.com/ethereum/tests, or nothing if there are none:
# that of ETHEREUM_TESTS, or else shared/data/ethereum-tests beside the repository. An archive in it
# is unpacked into target/ once.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
beside=$root/../shared/data/ethereum-tests
directory=${ETHEREUM_TESTS:-}
if [ -z "$directory" ]; then
	if [ ! -d "$beside" ]; then
		exit 0
	fi
	directory=$beside
fi
if [ -d "$directory/BlockchainTests" ]; then
	cd "$directory" && pwd
	exit 0
fi
for archive in "$directory"/*.tar.zst; do
	if [ ! -f "$archive" ]; then
		echo "$directory has neither BlockchainTests nor an archive (*.tar.zst) of them" >&2
		exit 1
	fi
	if ! command -v zstd >/dev/null; then
		echo "$archive needs zstd: install it (apt-get install zstd)" >&2
		exit 1
	fi
	unpacked=$root/target/ethereum-tests/$(basename "$archive" .tar.zst)
	if [ ! -d "$unpacked" ]; then
		mkdir -p "$root/target/ethereum-tests"
		part=$(mktemp -d "$root/target/ethereum-tests/part.XXXXXX")
		zstd --quiet --decompress --stdout "$archive" | tar -x -C "$part"
		mv "$part" "$unpacked"
	fi
	echo "$unpacked"
	exit 0
done
