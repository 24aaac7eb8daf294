-- A module file (Lmod): `module load penstock`.  Set root to the virtual environment.
help([[Penstock records the I/O of a training job: penstock run python train.py]])
whatis("Name: penstock")
whatis("Description: records, explains and removes the I/O wait of training jobs")
local root = os.getenv("PENSTOCK_ROOT") or "/opt/penstock"
prepend_path("PATH", pathJoin(root, "bin"))
