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
