#!/bin/sh
# TaskProlog of slurm.conf: records each task of the chosen users and partitions.  Settings: penstock.conf
# beside this file.  What this prints, Slurm puts into the task's environment; it never fails.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
# shellcheck disable=SC1091  # of the site
. "${PENSTOCK_SLURM_CONF:-$here/penstock.conf}" || exit 0
"${PENSTOCK:-penstock}" slurm prolog --runs "$RUNS" --users "${USERS:-}" \
    --partitions "${PARTITIONS:-}" --budget "${BUDGET:-100MB}" || :
exit 0
