"""Stands for torchaudio, which LLaMA-Factory imports for models of sound: what package registries have of it is for CUDA's torch."""
