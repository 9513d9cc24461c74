"""Environment variables on which the time of a step depends."""

# Of torch and its libraries, by how they begin. A script must find them as it would without Ray,
# which sets OMP_NUM_THREADS for its tasks, as no shell does.
TORCH_SETTINGS = (
    "ATEN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH_",
)
# And those of the machine, which change how fast a step is there, or which code the script finds.
MACHINE_SETTINGS = (
    "CUBLAS_",
    "CUDA_",
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_",
    "NVIDIA_",
    "PYTHONPATH",
)
