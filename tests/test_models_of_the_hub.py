"""Models by the ids that scripts of fine-tuning have for them: shapes of their own, and those of what they were tuned
from."""

import pytest

from gpuscale import load_model, read_launch
from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.shapes import same_shape


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "vocab"),
    [
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 22, 2048, 32000),
        ("tiiuae/Falcon3-7B-Instruct", 28, 3072, 131072),
        ("codellama/CodeLlama-7b-hf", 32, 4096, 32016),
        ("microsoft/Phi-4-mini-instruct", 32, 3072, 200064),
        ("EleutherAI/pythia-160m", 12, 768, 50304),
        ("bigcode/starcoder", 40, 6144, 49152),
        ("ibm-granite/granite-3.1-8b-instruct", 40, 4096, 49155),
        ("THUDM/chatglm3-6b", 28, 4096, 65024),
        ("Qwen/Qwen1.5-MoE-A2.7B", 24, 2048, 151936),
        ("allenai/Olmo-3-1025-7B", 32, 4096, 100278),
        ("/data/models/google/gemma-3-270m-it", 18, 640, 262144),
        ("upstage/SOLAR-10.7B-v1.0", 48, 4096, 32000),
        ("Qwen/Qwen3.5-9B", 32, 4096, 248320),
    ],
)
def test_shapes_of_their_own(name, layers, hidden, vocab):
    model = load_model(known_model(name)[0])
    assert (model.layers, model.hidden, model.vocab) == (layers, hidden, vocab)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("microsoft/DialoGPT-medium", "gpt2-medium"),
        ("bigscience/bloomz-7b1", "bloom-7b1"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("deepseek-ai/deepseek-math-7b-instruct", "deepseek-llm-7b"),
        ("internlm/internlm2_5-7b-chat", "internlm2-7b"),
        ("microsoft/Phi-3.5-mini-instruct", "phi3-mini"),
        ("lmsys/vicuna-33b-v1.3", "llama-33b"),
    ],
)
def test_what_was_tuned_has_the_shape_of_what_it_was_tuned_from(name, of):
    assert known_model(name) == (name, False) and same_shape(load_model(name), load_model(of))


def test_a_model_that_sees_images_has_the_decoder_and_its_tower(tmp_path):
    file = tmp_path / "a.sh"
    line = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-VL-72B-Instruct --train_type lora --lora_rank 64 "
    file.write_text(f"{line}--per_device_train_batch_size 2 --max_length 2048 --deepspeed zero3 --freeze_vit true\n")
    job = read_launch([file], {}, {})
    model = load_model(job.options["model"])
    assert (model.layers, model.counted_tower, job.options["tower"]) == (80, 704_573_696, "frozen")
    assert same_shape(model, load_model("qwen2.5-72b"))
