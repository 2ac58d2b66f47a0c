"""Exports a model for OpenVINO GenAI with 8-bit weights, as `optimum-cli export openvino --weight-format int8` does.

Arguments: the Hugging Face folder, the folder to make. The command itself refuses Gemma 3 beside the transformers that
all else here needs; its export works, so that bound is lifted.
"""

import sys

from optimum.exporters.openvino import main_export, model_configs
from optimum.intel.openvino.configuration import OVConfig

for name, config in vars(model_configs).items():
    if name.startswith("Gemma3") and getattr(config, "MAX_TRANSFORMERS_VERSION", None):
        config.MAX_TRANSFORMERS_VERSION = "99"

main_export(
    sys.argv[1],
    sys.argv[2],
    task="text-generation-with-past",
    ov_config=OVConfig(quantization_config={"bits": 8, "sym": False}),
)
