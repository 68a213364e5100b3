// For the pages that scripts/site makes: a button that copies code, and the search.
for (const code of document.querySelectorAll('.code')) {
    const button = document.createElement('button');
    button.textContent = 'Copy';
    button.onclick = async () => {
        await navigator.clipboard.writeText(code.querySelector('pre').textContent.trimEnd());
        button.textContent = 'Copied';
    };
    code.append(button);
}

const pages = document.querySelector('nav');
const current = pages.querySelector('[aria-current]');
if (current) pages.scrollTop = current.offsetTop - pages.offsetTop - pages.clientHeight / 3;

const results = document.querySelector('output');
if (results) {
    const input = document.querySelector('input');
    input.value = new URLSearchParams(location.search).get('q') ?? '';
    input.oninput = () => results.replaceChildren(...find(input.value));
    input.oninput();
    input.focus();
}

// The parts of pages that have all words; a word in a heading counts more.
function find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const count = (text, word) => Math.min(text.toLowerCase().split(word).length - 1, 5);
    const score = (head, text) => words.reduce(
        (product, word) => product * (20 * count(head, word) + count(text, word)), 1);
    const hits = !words.length ? [] : index.map(([url, title, heading, text]) =>
        ({ url, title, heading, text, score: score(`${title} ${heading}`, text) })
    ).filter(hit => hit.score).sort((a, b) => b.score - a.score);
    return !hits.length && words.length ? ['Nothing has all of these words.'] : hits.map(hit => {
        const part = document.createElement('p');
        const link = Object.assign(document.createElement('a'), { href: hit.url });
        const at = text => text.lastIndexOf(' ', text.toLowerCase().indexOf(words[0]) - 60) + 1;
        link.textContent = `${hit.title}: ${hit.heading}`;
        part.append(link, document.createElement('br'), hit.text.substr(at(hit.text), 200), ' …');
        return part;
    });
}
