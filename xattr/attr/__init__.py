"""Attribution methods that follow Captum's API; each is imported when it is first used.

`METHODS` lists them: name of the class to the module that holds it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ag_cam import AGCam
    from .attention_grad_cam import AttentionGradCam
    from .controls import BlurredMap, BrightnessMap, CentreMap, EdgeMap, RandomMap
    from .finer_cam import FinerCam
    from .full_grad_plus import FullGradPlus
    from .gamma_tuner import GammaTuning, tune_gamma
    from .generic_attention import GenericAttention
    from .grad_cam import GradCam
    from .gradient_x_token import GradientXToken
    from .gradskip import GradSkip, GradSkipEvidence, GradSkipSettings
    from .input_space import InputSpace
    from .integrated_gradients import IntegratedGradients
    from .laya import LayaLayerAttribution
    from .laya_post_hoc import LayaPostHocAttribution
    from .laya_tokens import LayaEvidence, LayaTokenAttribution
    from .le_grad import LeGrad
    from .lrp import LRP
    from .mutex import MUTEX
    from .res_lrp import ResLRP
    from .rise import RISE
    from .rollout import AttentionRollout
    from .tis import TIS
    from .token_tm import TokenTM
    from .transformer_attribution import TransformerAttribution
    from .vit_cx import ViTCX

METHODS: dict[str, str] = {
    "GradSkip": "gradskip",
    "GradientXToken": "gradient_x_token",
    "AttentionRollout": "rollout",
    "GradCam": "grad_cam",
    "IntegratedGradients": "integrated_gradients",
    "LRP": "lrp",
    "GenericAttention": "generic_attention",
    "AttentionGradCam": "attention_grad_cam",
    "AGCam": "ag_cam",
    "LeGrad": "le_grad",
    "TokenTM": "token_tm",
    "TransformerAttribution": "transformer_attribution",
    "FullGradPlus": "full_grad_plus",
    "ResLRP": "res_lrp",
    "FinerCam": "finer_cam",
    "RISE": "rise",
    "TIS": "tis",
    "MUTEX": "mutex",
    "ViTCX": "vit_cx",
    "RandomMap": "controls",
    "CentreMap": "controls",
    "BrightnessMap": "controls",
    "EdgeMap": "controls",
}
_OTHERS = {
    "BlurredMap": "controls",
    "GammaTuning": "gamma_tuner",
    "GradSkipEvidence": "gradskip",
    "GradSkipSettings": "gradskip",
    "InputSpace": "input_space",
    "LayaEvidence": "laya_tokens",
    "LayaLayerAttribution": "laya",
    "LayaPostHocAttribution": "laya_post_hoc",
    "LayaTokenAttribution": "laya_tokens",
    "tune_gamma": "gamma_tuner",
}

__all__ = [
    "LRP",
    "METHODS",
    "MUTEX",
    "RISE",
    "TIS",
    "AGCam",
    "AttentionGradCam",
    "AttentionRollout",
    "BlurredMap",
    "BrightnessMap",
    "CentreMap",
    "EdgeMap",
    "FinerCam",
    "FullGradPlus",
    "GammaTuning",
    "GenericAttention",
    "GradCam",
    "GradSkip",
    "GradSkipEvidence",
    "GradSkipSettings",
    "GradientXToken",
    "InputSpace",
    "IntegratedGradients",
    "LayaEvidence",
    "LayaLayerAttribution",
    "LayaPostHocAttribution",
    "LayaTokenAttribution",
    "LeGrad",
    "RandomMap",
    "ResLRP",
    "TokenTM",
    "TransformerAttribution",
    "ViTCX",
    "tune_gamma",
]


def __getattr__(name: str) -> Any:
    module = METHODS.get(name) or _OTHERS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
