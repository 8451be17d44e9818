#!/usr/bin/env bash
# Compiles for build.sh: cargo's RUSTC_WRAPPER. Cargo tells the crates of this repository from others
# by their absolute paths, and that decides the order of functions. Here the paths have no effect.
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
