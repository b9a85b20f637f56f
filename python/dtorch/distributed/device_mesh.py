"""Meshes: devices in an N-D array with named dimensions."""

from dtorch._C import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
