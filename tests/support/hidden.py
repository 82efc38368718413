"""Environment variables that hide the drivers of this machine from a program that a test runs."""

from __future__ import annotations

from pathlib import Path

NO_CUDA = {"CUDA_VISIBLE_DEVICES": "-1"}


def vulkan_alone(manifest: str | Path) -> dict[str, str]:
    """Hide all Vulkan drivers but the one that this file describes. Validation layers would see the driver, too."""
    return {"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest), "VKRNN_VALIDATION": ""}


NO_VULKAN = vulkan_alone("/nonexistent")
NO_GPU = NO_VULKAN | NO_CUDA
