"""`cs336kit serve`: the memory of a served model, and how fast it can be."""

import argparse
import dataclasses
import json
from typing import Any

from cs336kit.command import arguments as read
from cs336kit.command.arguments import Keys, Parser, add_links, check_listed
from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.decoding.load import CHUNK, WEIGHT_TYPES
from cs336kit.predict.packed import EXPERTS
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.commands.model import MODULES, model_of, to_trace
from cs336plan.serving.question import ServingQuestion
from cs336plan.serving.schema import KEYS, SCHEMA
from cs336plan.serving.serve import serve

PURPOSE = "memory, latency and throughput of a served model"
_EXAMPLES = """
    examples:
      how many users at once, and how fast for each?
        cs336kit serve llama-3-8b
      four bits a weight on a smaller card, and a cache in fp8
        cs336kit serve llama-3-8b --accelerator l4 --weights int4 --cache fp8
      the largest batch in which a token takes no more than 20 ms
        cs336kit serve llama-3-8b --latency 20ms --prompt 4096 --output 1024
      as published, experts in mxfp4; at 70 % of the datasheet's bandwidth and peak
        cs336kit serve openai/gpt-oss-120b --efficiency 70%
      four cards share a model; what a million tokens cost
        cs336kit serve llama-3-70b --count 4 --price-per-hour 2.5

    --json-keys prints what every key of --json means.
"""


def parser() -> argparse.ArgumentParser:
    """Every option, under the name of the field of the question that it sets; defaults are those of the question."""
    command = Parser.of("serve", "MODEL [options]", purpose=PURPOSE, examples=_EXAMPLES)
    add = command.add_argument
    add("model", help="a name or hub id (llama-3-8b, Qwen/Qwen3-8B), a config.json or its folder")
    whose = "transformers: count its own modules of a config.json by tracing, as for any file that the kit's rules do not read"
    add("--modules", choices=list(MODULES), metavar="NAME", help=whose)
    what = command.add_argument_group("what is served").add_argument
    types = ", ".join(name for name in WEIGHT_TYPES if not name.endswith(EXPERTS))
    sizes = "other integers by their bits and group, as int3-g64"
    stored = f"{types}; {sizes}; mxfp4{EXPERTS} and its like for experts alone; left out: as published where known, else bf16"
    what("--weights", choices=list(WEIGHT_TYPES), metavar="NAME", help=stored)
    what("--cache", choices=list(CACHE_TYPES), metavar="NAME", help=", ".join(CACHE_TYPES))
    prompt = "tokens of a prompt (half of the context, at most 2048); 4k is 4,000, and 4Ki 4,096"
    what("--prompt", type=read.length, metavar="N", help=prompt)
    what("--output", type=read.length, metavar="N", help="tokens of an answer (half of the context, at most 512)")
    longest = "tokens of a prompt and its answer together, also beyond those that the model was trained for"
    what("--context", type=read.length, metavar="N", help=longest)
    chunk = f"tokens of a prompt that one pass takes ({CHUNK}, as engines do); a longer prompt takes several"
    what("--chunk", type=read.length, metavar="N", help=chunk)
    what("--batch", type=read.count, metavar="N", help="one more row of the table, for so many sequences")
    what("--page", type=read.count, metavar="N", help="tokens of a page of the cache, 16 by default")
    what("--latency", type=read.seconds, metavar="TIME", help="that a token may take, such as 20ms")
    on = command.add_argument_group("the machine").add_argument
    on("--accelerator", metavar="NAME", help="such as h100-sxm (the default) or l4")
    on("--count", type=read.count, metavar="N", help="accelerators that divide every layer (tensor parallel)")
    own = "such as 80GB or nvidia-smi's 81559MiB, in place of the table's; without --accelerator, give peak and bandwidth, too"
    on("--memory", dest="memory_bytes", type=read.size, metavar="SIZE", help=own)
    peak = "dense peak of the products, such as 989TFLOPs"
    on("--peak", dest="peak_flops_per_second", type=read.rate, metavar="RATE", help=peak)
    on("--bandwidth", type=read.bandwidth, metavar="RATE", help="of the memory, such as 3.35TB/s")
    reached = "share of bandwidth and peak that is reached, 0.7 or 70%% (1: the datasheet's rates)"
    on("--efficiency", type=read.share, metavar="X", help=reached)
    add_links(on)
    free = "memory that is left free, 2GiB or 8%%; the default is printed"
    on("--allowance", type=read.allowance, metavar="SIZE", help=free)
    show = command.add_argument_group("the answer").add_argument
    price = "of one accelerator, in your currency: cost of a million output tokens, prompts included"
    show("--price-per-hour", type=read.number, metavar="X", help=price)
    show("--json", action="store_true", help="print JSON")
    show("--json-keys", action=Keys, keys=KEYS, schema=SCHEMA, help="what each key of --json means")
    return command


def run(arguments: list[str]) -> int:
    """Answer and print."""
    command = parser()
    values = {name: value for name, value in vars(command.parse_args(arguments)).items() if value is not None}
    as_json = values.pop("json")
    check_listed(values.get("accelerator"), "--memory 128GB --peak 28TFLOPs --bandwidth 400GB/s")
    if "accelerator" not in values:
        own = {"memory_bytes": "--memory", "peak_flops_per_second": "--peak", "bandwidth": "--bandwidth"}
        lacking = [option for field, option in own.items() if field not in values]
        if 0 < len(lacking) < len(own):
            raise ValueError(
                f"a chip of your own needs {' and '.join(lacking)}, too; or name the one whose other numbers hold, such as "
                "--accelerator h100-sxm"
            )
        if not lacking:
            values["accelerator"] = None
    text, modules = values.pop("model"), values.pop("modules", None)
    if (file := to_trace(text, modules)) is not None:
        from cs336plan.traced_answers.serving import serve as traced_serve

        traced_answer = traced_serve(file, values, read.options_of(command))
        print(json.dumps(traced_answer.as_dict(), indent=2) if as_json else traced_answer)
        return 0
    name, model = model_of(text)
    if not isinstance(model, TransformerConfig):
        raise ValueError(f"serving needs the shape of a model, and {name} is a number of parameters: name a model")
    model = _of_length(model, values)
    answer = serve(ServingQuestion(model=model, name=name, **values))
    answer = dataclasses.replace(answer, facts=(*answer.facts, *model.notes))
    print(json.dumps(answer.as_dict(), indent=2) if as_json else answer)
    return 0


def _of_length(model: TransformerConfig, values: dict[str, Any]) -> TransformerConfig:
    """The model with the context that is asked for; prompt or answer, where one is not given, fill what is left of it."""
    if (context := values.pop("context", None)) is None:
        return model
    if context > model.context and model.positions == "learned":
        raise ValueError(f"--context {context}: the model's learned positions end at {model.context:,}; give no more")
    prompt, output = values.get("prompt"), values.get("output")
    if prompt is None:
        output = min(context // 2, 512) if output is None else output
        values |= {"prompt": context - output, "output": output}
    elif output is None:
        values["output"] = context - prompt
    together = values["prompt"] + values["output"]
    if min(values["prompt"], values["output"]) < 1 or together > context:
        raise ValueError(
            f"a prompt of {values['prompt']:,} and an answer of {values['output']:,} tokens do not go into --context {context}: "
            "leave one of them out, or give a longer context"
        )
    if context <= model.context:
        return model
    beyond = f"a context of {context:,} is beyond the {model.context:,} that the model was trained for: its bytes and times are "
    beyond += "counted, and what it answers there is another question"
    return dataclasses.replace(model, context=context, notes=(*model.notes, beyond))
