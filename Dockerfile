# The app on a machine without a GPU. The model is fetched at the first start, into the volume.
#   docker build -t bastion-studio . && docker run -p 127.0.0.1:8501:8501 -v bastion:/data bastion-studio
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 bastion && mkdir /data && chown bastion /data
WORKDIR /app
COPY requirements.txt requirements-viewer.txt ./
RUN pip install --no-cache-dir -r requirements.txt
COPY --chown=bastion . .

USER bastion
ENV BASTION_HOME=/data PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"
# Every interface, here only: inside the container nothing else could reach the port.
CMD ["streamlit", "run", "app.py", "--server.address=0.0.0.0", "--server.port=8501"]
