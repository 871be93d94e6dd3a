# A translation server in a container:
#   make wheel && docker build -t lasformer .
#   docker run -p 127.0.0.1:5000:5000 -v /srv/models/mine:/model:ro lasformer
# From other containers of its network it is http://lasformer:5000; another name: ... lasformer lasformer serve /model --name NAME
# /model: a checkpoint and its prepared folder, as lasformer pack writes them. Without network, put torch's wheel into dist/.
FROM python:3.11-slim
COPY dist /dist
RUN pip install --no-cache-dir --find-links /dist torch==2.13.0
RUN pip install --no-cache-dir --find-links /dist fairseq_lasformer[server] fairseq-fixed && useradd --create-home lasformer
USER lasformer
WORKDIR /home/lasformer
ENV HOME=/home/lasformer
EXPOSE 5000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:5000/health', timeout=5)"]
CMD ["lasformer", "serve", "/model", "--host", "0.0.0.0", "--port", "5000", "--name", "lasformer"]
