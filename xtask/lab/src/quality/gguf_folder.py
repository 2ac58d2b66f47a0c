"""Makes a Hugging Face folder in f32 of a GGUF file. usage: gguf_folder.py FILE FOLDER"""
import os, sys  # noqa: E401
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = sys.argv[1:3]
where, name = os.path.split(os.path.abspath(file))
model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)
