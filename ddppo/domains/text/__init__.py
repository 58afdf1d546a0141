"""Tasks and policies of text: tokens, models of sequences, episodes in turns."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    models={
        "token_policy": f"{__name__}.token_policy:TokenPolicy",
        "hf": f"{__name__}.hf_policy:HuggingFacePolicy",
    },
    sections={"curriculum": f"{__name__}.curriculum.settings:CurriculumSettings"},
    samplers={"curriculum": f"{__name__}.curriculum.sampler:make_sampler"},
    metrics={"curriculum/": f"{__name__}.curriculum.settings:METRICS"},
    evaluators={"text": f"{__name__}.evaluation:TextEvaluator"},
    excerpts={"rollouts": f"{__name__}.rollout_views:excerpts"},
    settings={
        "model/token_policy": f"{__name__}.settings:TokenPolicySettings",
        "model/hf": f"{__name__}.settings:HfSettings",
    },
)
