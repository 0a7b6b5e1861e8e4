//! Regions, pools, block allocation, the registry and the copy kernels.
