"""What `/metrics` says that depends on the model's folder."""
import shutil

from conftest import ROOT


def test_weights_are_those_of_the_model(start_server, server, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(ROOT / "models/small", folder)
    with (folder / "old.safetensors").open("wb") as file:  # belongs to no checkpoint, and has no bytes on the disk
        file.truncate(1 << 30)
    weights = start_server(folder).metric("mdi_memory_bytes", part="weights")
    assert weights == server.metric("mdi_memory_bytes", part="weights")
    size = (ROOT / "models/small/model.safetensors").stat().st_size
    assert 0.9 * size < weights < 1.1 * size
