"""The vocabulary of the demo corpus: English words with the German forms that its sentences need."""

from __future__ import annotations


def rows(text: str) -> list[tuple[str, ...]]:
    """Parse ``english: form, form`` entries separated by semicolons."""
    entries = (entry.strip() for entry in text.replace("\n", " ").split(";"))
    return [tuple(part.strip() for part in entry.replace(":", ",", 1).split(",")) for entry in entries if entry]


# english: nominative, accusative, dative (article, then noun, so that an adjective fits between them)
PERSONS = rows("""
farmer: der Bauer, den Bauern, dem Bauern; teacher: der Lehrer, den Lehrer, dem Lehrer; doctor: der Arzt, den Arzt, dem Arzt;
baker: der Bäcker, den Bäcker, dem Bäcker; neighbour: der Nachbar, den Nachbarn, dem Nachbarn; child: das Kind, das Kind, dem Kind;
girl: das Mädchen, das Mädchen, dem Mädchen; woman: die Frau, die Frau, der Frau; man: der Mann, den Mann, dem Mann;
painter: der Maler, den Maler, dem Maler; singer: die Sängerin, die Sängerin, der Sängerin; judge: der Richter, den Richter, dem Richter;
student: der Student, den Studenten, dem Studenten; cook: der Koch, den Koch, dem Koch; king: der König, den König, dem König; aunt: die Tante, die Tante, der Tante

""")

GROUPS = rows("""
farmers: Bauern; teachers: Lehrer; doctors: Ärzte; bakers: Bäcker; neighbours: Nachbarn; children: Kinder; women: Frauen;
men: Männer; painters: Maler; singers: Sänger; students: Studenten; cooks: Köche

""")

# adjectives: english: stem
PERSON_ADJECTIVES = rows("""
old: alt; young: jung; tall: groß; friendly: freundlich; quiet: ruhig; clever: klug; tired: müd; proud: stolz; poor: arm; brave: mutig; famous: berühmt; curious: neugierig

""")
THING_ADJECTIVES = rows("""
red: rot; blue: blau; small: klein; large: groß; new: neu; heavy: schwer; round: rund; cheap: billig; broken: kaputt; beautiful: schön; simple: einfach; green: grün

""")

THINGS = rows("""
houses: Häuser; boats: Boote; books: Bücher; flowers: Blumen; windows: Fenster; paintings: Gemälde; shoes: Schuhe; pictures: Bilder;
apples: Äpfel; bicycles: Fahrräder; coats: Mäntel; candles: Kerzen; carpets: Teppiche; chairs: Stühle; ropes: Seile; boxes: Kisten

""")

# modals: english: third person singular, "du", "Sie"
MODALS = rows("""
will: wird, wirst, werden; must: muss, musst, müssen; can: kann, kannst, können; should: soll, sollst, sollen; may: darf, darfst, dürfen
""")
ADVERBS = rows("""
soon: bald; perhaps: vielleicht; again: wieder; alone: allein; quickly: schnell; carefully: vorsichtig; later: später; slowly: langsam

""")
VERBS = rows("""
buy: kaufen; sell: verkaufen; repair: reparieren; wash: waschen; count: zählen; hide: verstecken; describe: beschreiben; forget: vergessen;
find: finden; show: zeigen; carry: tragen; draw: zeichnen

""")
PARTICIPLES = rows("""
bought: gekauft; sold: verkauft; repaired: repariert; washed: gewaschen; counted: gezählt; hidden: versteckt; described: beschrieben;
forgotten: vergessen; found: gefunden; shown: gezeigt; carried: getragen

""")

# (a) what "it" can refer to, by gender. english: nominative, indefinite accusative, indefinite genitive
OBJECTS = {
    "er": rows("""
table: der Tisch, einen Tisch, eines Tisches; mirror: der Spiegel, einen Spiegel, eines Spiegels; hat: der Hut, einen Hut, eines Hutes;
stone: der Stein, einen Stein, eines Steins; oven: der Ofen, einen Ofen, eines Ofens
"""),
    "sie": rows("""
lamp: die Lampe, eine Lampe, einer Lampe; clock: die Uhr, eine Uhr, einer Uhr; bag: die Tasche, eine Tasche, einer Tasche;
bridge: die Brücke, eine Brücke, einer Brücke; door: die Tür, eine Tür, einer Tür
"""),
    "es": rows("""
bed: das Bett, ein Bett, eines Bettes; ship: das Schiff, ein Schiff, eines Schiffes; dress: das Kleid, ein Kleid, eines Kleides;
piano: das Klavier, ein Klavier, eines Klaviers; wheel: das Rad, ein Rad, eines Rades
"""),
}

# (b) topics by the place a text comes from. english: from there, there
PLACES = {
    "nature": rows("""
river: vom Fluss, am Fluss; forest: aus dem Wald, im Wald; lake: vom See, am See; coast: von der Küste, an der Küste;
meadow: von der Wiese, auf der Wiese; island: von der Insel, auf der Insel
"""),
    "town": rows("""
office: aus dem Büro, im Büro; factory: aus der Fabrik, in der Fabrik; market: vom Markt, auf dem Markt; court: vom Gericht, am Gericht;
station: vom Bahnhof, am Bahnhof; school: aus der Schule, in der Schule
"""),
}
REGIONS = {"nature": ("in the country", "auf dem Land"), "town": ("in the city", "in der Stadt")}
# english: accusative in a text about nature, in a text about the town
AMBIGUOUS = rows("""
bank: das Ufer, die Bank; bat: die Fledermaus, den Schläger; spring: die Quelle, die Feder;
plant: die Pflanze, das Werk; bill: den Schnabel, die Rechnung; trunk: den Baumstamm, den Koffer
""")

# (c) what indicates the tense: adverbs, and verbs of the same sentence. english present, english past: german present, german past
TENSE_ADVERBS = {
    "present": rows("today: heute; every day: jeden Tag; nowadays: heutzutage; usually: gewöhnlich"),
    "past": rows("yesterday: gestern; last week: letzte Woche; last year: letztes Jahr; long ago: vor langer Zeit"),
}
TENSE_VERBS = rows("""
visits: visited, besucht, besuchte; greets: greeted, grüßt, grüßte; asks: asked, fragt, fragte; loves: loved, liebt, liebte; hears: heard, hört, hörte;
sees: saw, sieht, sah; finds: found, findet, fand; meets: met, trifft, traf; praises: praised, lobt, lobte
""")
# verbs that look alike in both tenses. english: german present, german past
UNMARKED_VERBS = rows("""
put: stellen, stellten; cut: schneiden, schnitten; hit: treffen, trafen; shut: schließen, schlossen; read: lesen, lasen; split: spalten, spalteten;
spread: verteilen, verteilten; set: setzen, setzten; cast: werfen, warfen; beat: schlagen, schlugen
""")

# (d) the person addressed by the text
NAMES = {
    "Sie": rows("""
Mr Miller: Herr Miller; Mrs Smith: Frau Smith; Mr Brown: Herr Brown; Mrs Taylor: Frau Taylor; Mr Wilson: Herr Wilson; Mrs Evans: Frau Evans;
Mr Thomas: Herr Thomas; Mrs Walker: Frau Walker; Mr Wright: Herr Wright; Mrs Hughes: Frau Hughes
"""),
    "du": rows("""
Anna: Anna; Paul: Paul; Emma: Emma; Felix: Felix; Laura: Laura; Max: Max; Sophie: Sophie; Lukas: Lukas; Clara: Clara; Jonas: Jonas
"""),
}
GREETINGS = rows("hello: hallo; good morning: guten Morgen; welcome: willkommen; good evening: guten Abend")
TEXTS = rows(
    "report: dieser Bericht; message: diese Nachricht; text: dieser Text; story: diese Geschichte; page: diese Seite"
)
