"""Made rows of a multi-hop train file, with and without a decomposition."""


def paragraph(title: str, text: str) -> dict:
    return {"title": title, "text": text}


CONTEXT = [
    paragraph("Noise", "Nothing of use."),
    paragraph("Ann Lee", "Ann Lee was born in Lima."),
    paragraph("Other", "Nothing either."),
    paragraph("Blue Song", "Blue Song was written by Ann Lee."),
]
MUSIQUE = {
    "id": "m",
    "question": "Where was the writer of Blue Song born?",
    "golden_answers": ["Lima", "City of Lima"],
    "context": CONTEXT,
    "supporting_titles": ["Ann Lee", "Blue Song"],
    "supporting_idx": [1, 3],
    "decomposition": [
        {"question": "Blue Song >> writer", "answer": "Ann Lee"},
        {"question": "Where was #1 born?", "answer": "Lima"},
    ],
}
HOTPOT = {key: MUSIQUE[key] for key in ("question", "golden_answers", "context")} | {
    "id": "h",
    "supporting_titles": ["Ann Lee", "Blue Song"],
}


# Rows as 2Wiki has them, with facts.
_ANN = paragraph("Ann Lee", "Ann Lee (2 May 1901 – 1 May 1990) was a Peruvian film director.")
_BO = paragraph("Bo Dahl (painter)", "Bo Dahl (born June 3, 1950) is a Danish film director.")
_BO_LEE = paragraph("Bo Dahl", "Bo Dahl (born June 3, 1950) is a Danish film director.")
_CY = paragraph("Cy Poe", "Cy Poe (born 7 June 1925) is a Danish film director.")
_RED = paragraph("Red Sea", "Red Sea is a film directed by Ann Lee.")
_BLUE = paragraph("Blue Sky", "Blue Sky is a film directed by Bo Dahl.")
_GREY = paragraph("Grey Fog", "Grey Fog is a film directed by Cy Poe.")


def _facts_row(
    name: str, question: str, answer: str, golds: list[dict], others: list[dict], *facts: list[str]
) -> dict:
    return {
        "id": name,
        "question": question,
        "golden_answers": [answer],
        "context": [*others, *golds],
        "supporting_titles": [gold["title"] for gold in golds],
        "evidences": list(facts),
    }


_BORN = [
    ["Ann Lee", "date of birth", "2 May 1901"],
    ["Bo Dahl", "date of birth", "June 3, 1950"],
]
_FILM = [["Red Sea", "director", "Ann Lee"], ["Blue Sky", "director", "Bo Dahl"]]
COMPARISON = _facts_row(
    "c",
    "Who was born later, Ann Lee or Bo Dahl (Painter)?",
    "Bo Dahl (Painter)",
    [_BO, _ANN],
    [_CY],
    *reversed(_BORN),
)
FILMS = _facts_row(
    "f",
    "Which film has the older director, Red Sea or Blue Sky?",
    "Red Sea",
    [_BLUE, _RED, _ANN, _BO_LEE],
    [_GREY],
    *_FILM,
    *_BORN,
)
JOIN = _facts_row(
    "j",
    "When was the director of film Red Sea born?",
    "2 May 1901",
    [_RED, _ANN],
    [_GREY],
    _FILM[0],
    _BORN[0],
)
NATIONS = _facts_row(
    "n",
    "Are Ann Lee and Bo Dahl of the same country?",
    "no",
    [_ANN, _BO_LEE],
    [_CY],
    ["Ann Lee", "country of citizenship", "Peruvian"],
    ["Bo Dahl", "country of citizenship", "Danish"],
)
