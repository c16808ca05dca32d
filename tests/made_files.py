"""Documents of every format, made for tests: byte for byte ours, and as small as the formats allow."""

import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_RELS = "application/vnd.openxmlformats-package.relationships+xml"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def pdf(
    pages: Sequence[Sequence[str] | None], outline: Sequence[tuple[str, int]] = (), title: str | None = None
) -> bytes:
    """Return a PDF with the lines of each page, a page that is a picture for None, and bookmarks by page from 1."""
    letters = sorted({char for lines in pages if lines for line in lines for char in line})
    codes = {char: number for number, char in enumerate(letters, start=1)}
    mapping = "".join(f"<{code:02X}> <{ord(char):04X}>\n" for char, code in codes.items())
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /A def /CMapType 2 def\n"
        f"1 begincodespacerange <00> <FF> endcodespacerange\n{len(codes)} beginbfchar\n{mapping}endbfchar\n"
        "endcmap end end"
    ).encode()
    widths = " ".join(["600"] * 256)
    objects: dict[int, bytes] = {
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /FirstChar 0 /LastChar 255 /ToUnicode 4 0 R /Widths ["
        + widths.encode()
        + b"] >>",
        4: _stream(cmap),
        5: _stream(b"\xff", "/Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8"),
    }
    kids = []
    for lines in pages:
        coded = ["".join(f"{codes[char]:02X}" for char in line) for line in lines or ()]
        text = ["BT /F 11 Tf 14 TL 60 760 Td", *(f"<{line}> Tj T*" for line in coded), "ET"]
        drawn = text if lines is not None else ["q 500 0 0 700 50 50 cm /P Do Q"]
        number = max(objects) + 1
        objects[number] = _stream("\n".join(drawn).encode())
        resources = "/Resources << /Font << /F 3 0 R >> /XObject << /P 5 0 R >> >>"
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] {resources} /Contents {number} 0 R >>"
        objects[number + 1] = page.encode()
        kids.append(number + 1)
    root = "<< /Type /Catalog /Pages 2 0 R >>"
    if outline:
        first = max(objects) + 2
        root = f"<< /Type /Catalog /Pages 2 0 R /Outlines {first - 1} 0 R >>"
        last = first + len(outline) - 1
        objects[first - 1] = f"<< /Type /Outlines /First {first} 0 R /Last {last} 0 R /Count {len(outline)} >>".encode()
        for number, (heading, page_number) in enumerate(outline, start=first):
            chained = f" /Next {number + 1} 0 R" if number < last else ""
            objects[number] = (
                f"<< /Title <{heading.encode('utf-16').hex()}> /Parent {first - 1} 0 R{chained} "
                f"/Dest [{kids[page_number - 1]} 0 R /Fit] >>"
            ).encode()
    objects[1] = root.encode()
    objects[2] = f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(f'{kid} 0 R' for kid in kids)}] >>".encode()
    info = max(objects) + 1
    objects[info] = f"<< /Title <{(title or '').encode('utf-16').hex()}> >>".encode()
    return _assembled(objects, info)


def _stream(data: bytes, fields: str = "") -> bytes:
    return f"<< {fields} /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream"


def _assembled(objects: dict[int, bytes], info: int) -> bytes:
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n")
    places = {}
    for number in sorted(objects):
        places[number] = out.tell()
        out.write(f"{number} 0 obj\n".encode() + objects[number] + b"\nendobj\n")
    table = out.tell()
    count = max(objects) + 1
    out.write(f"xref\n0 {count}\n0000000000 65535 f \n".encode())
    for number in range(1, count):
        out.write(f"{places[number]:010} 00000 n \n".encode())
    out.write(f"trailer\n<< /Size {count} /Root 1 0 R /Info {info} 0 R >>\nstartxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()


def zipped(parts: dict[str, str | bytes]) -> bytes:
    """Return a ZIP archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def docx(body: str) -> bytes:
    """Return a Word document with this body, in WordprocessingML; `heading` and `paragraph` make it."""
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="H{level}"><w:name w:val="heading {level}"/></w:style>'
        for level in (1, 2)
    )
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{_TYPES}"><Default Extension="xml" ContentType="application/xml"/>'
            f'<Default Extension="rels" ContentType="{_RELS}"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" Target="word/document.xml"'
            f' Type="{_OFFICE}/officeDocument"/></Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1"'
            f' Target="styles.xml" Type="{_OFFICE}/styles"/></Relationships>',
            "word/styles.xml": f"<w:styles {_W}>{styles}</w:styles>",
            "word/document.xml": f"<w:document {_W}><w:body>{body}</w:body></w:document>",
        }
    )


def paragraph(text: str, style: str = "") -> str:
    """Return a paragraph of a Word document; `text` is XML."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f'<w:p>{properties}<w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of a Word document."""
    cells = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def epub(chapters: dict[str, str | bytes], title: str = "", spine: Sequence[str] | None = None) -> bytes:
    """Return a book of XHTML documents, read in the order of `spine` (by default, of `chapters`)."""
    names = list(spine if spine is not None else chapters)
    items = "".join(f'<item id="{n}" href="{n}" media-type="application/xhtml+xml"/>' for n in {*names, *chapters})
    order = "".join(f'<itemref idref="{name}"/>' for name in names)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{order}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    parts: dict[str, str | bytes] = {"mimetype": "application/epub+zip", "META-INF/container.xml": container}
    return zipped({**parts, "OEBPS/book.opf": package, **{f"OEBPS/{name}": text for name, text in chapters.items()}})


def notebook(*cells: tuple[str, str, Sequence[dict[str, Any]]]) -> str:
    """Return a notebook of cells: each its type, source and outputs."""
    made = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "outputs": out} for kind, source, out in cells
    ]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": made})
