"""Codes of languages in files: what a file says of its own language is true of its translation."""

import re
from typing import NamedTuple

_CODES = (
    "ar_SA bg_BG bn_BD ca_ES cs_CZ cy_GB da_DK de_DE el_GR en_US es_ES et_EE eu_ES fa_IR fi_FI fr_FR ga_IE gl_ES "
    "he_IL hi_IN hr_HR hu_HU id_ID is_IS it_IT ja_JP ko_KR lt_LT lv_LV mk_MK ms_MY nb_NO nl_NL nn_NO pl_PL pt_PT "
    "ro_RO ru_RU sk_SK sl_SI sq_AL sr_RS sv_SE ta_IN te_IN th_TH tr_TR uk_UA ur_PK vi_VN zh_CN"
)
REGIONS = {code[:2]: code[3:] for code in _CODES.split()}
"""Usual region of a language, for formats whose programs need one to check spelling."""


_FROM_THE_RIGHT = ("ar", "ckb", "dv", "fa", "he", "iw", "ks", "ps", "sd", "ug", "ur", "yi")


def language(code: str) -> str:
    """Return the language of a code, without region and script: ``de`` of ``de_AT``."""
    return re.split(r"[-_@]", code.strip())[0].lower()


class Languages(NamedTuple):
    """The languages that a file is translated from and into; empty ones are not known."""

    source: str = ""
    target: str = ""

    @property
    def code(self) -> str:
        """The target as HTML, XML and WebVTT write it: ``de-AT``."""
        return self.target.replace("_", "-")

    @property
    def region(self) -> str:
        """Region of the target, or the usual one of its language; empty if it is not known."""
        match = re.search(r"[-_]([A-Za-z]{2})(?![A-Za-z])", self.target)
        return match[1].upper() if match else REGIONS.get(language(self.target), "")

    @property
    def direction(self) -> str:
        """Direction of the target, ``rtl`` or ``ltr``, as HTML says it; empty if it is that of the source."""
        both = ["rtl" if language(code) in _FROM_THE_RIGHT else "ltr" for code in (self.source, self.target)]
        return both[1] if self.source and self.target and both[0] != both[1] else ""

    def replaces(self, code: str) -> bool:
        """Return whether text in a language, by its code, is in a different one afterwards."""
        return bool(self.target and self.source and code) and language(code) == language(self.source)

    def instead(self, code: str) -> str:
        """Return the code that a translation has in the place of another: the target's if it :meth:`replaces` that."""
        return self.code if self.replaces(code) else code


_ONE_FORM = ("fa", "id", "ja", "ka", "km", "ko", "lo", "ms", "my", "th", "vi", "zh")
_TWO_FORMS = (
    *("af", "bg", "bn", "ca", "da", "de", "el", "en", "eo", "es", "et", "eu", "fi", "fo", "gl", "he", "hi", "hu"),
    *("it", "kn", "mr", "nb", "ne", "nl", "nn", "no", "pa", "pt", "sq", "sv", "sw", "ta", "te", "tk", "ur"),
)


def plural_rule(code: str) -> tuple[str, str] | None:
    """Return the number of plural forms of a language and the expression that chooses one, as gettext has them.

    None for languages with more than two forms, and unknown ones.
    """
    name = language(code)
    if name in _ONE_FORM:
        return "1", "0"
    if name in ("fr", "tr", "uz") or code.replace("-", "_").lower() == "pt_br":
        return "2", "(n > 1)"
    return ("2", "(n != 1)") if name in _TWO_FORMS else None
