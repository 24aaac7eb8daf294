#!/bin/sh
# Epilog of slurm.conf: reports the job's runs on this node as their owner and keeps a summary of each.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
# shellcheck disable=SC1091  # of the site
. "${PENSTOCK_SLURM_CONF:-$here/penstock.conf}" || exit 0
"${PENSTOCK:-penstock}" slurm epilog --runs "$RUNS" --summaries "$SUMMARIES" ${REMOVE:+--remove} || :
exit 0
