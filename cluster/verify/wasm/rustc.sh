#!/usr/bin/env bash
# The RUSTC_WRAPPER of build.sh. Cargo tells the crates of this repository from others by their
# absolute paths, which decides the order of functions. Here the paths have no effect.
set -euo pipefail

ours=
arguments=()
for argument in "$@"; do
    case $argument in
    coppice_*) ours=1 ;;
    metadata=*) [ -z "$ours" ] || argument=metadata=coppice ;;
    esac
    arguments+=("$argument")
done
exec "${arguments[@]}"
